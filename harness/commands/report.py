"""`report`: make pages of documents and bundles that earlier commands wrote; needs no torch."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from harness.commands.options import PASSED
from harness.untrusted import BadInput, NotReadable, read_file, read_json

# The document of a campaign of millions of cases is smaller.
MOST_BYTES = 1 << 28


Names = Annotated[
    tuple[str, ...],
    Parameter(
        name="DOCUMENT|BUNDLE",
        help="what --json printed, conformance.json, the folder of a bundle, or its id; "
        "you may name several",
    ),
]
Out = Annotated[Path, Parameter(metavar="DIR", help="where to write them")]


def run(names: Names, /, *, out: Out = Path("report")) -> int:
    from harness.report.html import pages_of, require_writable_folder, save

    require_writable_folder(out)
    # Read every document before a page is written: a user easily overlooks a missing page.
    found = [pages_of(name, read_document(name)) for name in names]
    written = [save(out, pages) for pages in found]
    for pages in written:
        print(pages[0])  # noqa: T201 - the output of the command
    return PASSED


def read_document(name: str) -> Any:
    """Return the JSON in a file or in a bundle; raise `BadInput` if there is none."""
    file = Path(name)
    if not file.is_file():
        from harness.failure.bundle import find_bundle
        from harness.failure.bundle.read import RECORD

        file = find_bundle(name) / RECORD
    try:
        return read_json(read_file(file.resolve(), MOST_BYTES))
    except OSError as error:
        which = f"{file.name} " if Path(name).is_dir() else ""
        raise BadInput(f"document={name}: {which}cannot be read: {error.strerror}") from None
    except NotReadable as error:
        raise BadInput(f"document={name}: {error}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"document={name}: is not JSON") from None
