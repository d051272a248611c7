"""`merge`: add up the documents that the shards of one campaign printed."""

from typing import Annotated

from cyclopts import Parameter

from harness.commands.options import Report, answer, require_writable_report, status_of

Documents = Annotated[
    tuple[str, ...], Parameter(name="DOCUMENT", help="files with what `check --json` printed")
]


def run(documents: Documents, /, *, options: Report = Report()) -> int:
    require_writable_report(options)

    from rich.console import Console

    from harness.campaign.closing import closing
    from harness.campaign.merge import merge, read_document
    from harness.campaign.table import show, show_failures
    from harness.console import print_plain

    summary = merge([(name, read_document(name)) for name in documents])
    console = Console(stderr=options.json)
    show(summary, console)
    show_failures(summary, console)
    status = status_of(summary.verdict)
    print_plain(console, f"\n{closing(summary, status)}")
    return answer(options, summary.record(), status)
