"""`report`: pages of what was found, made later; needs no torch."""

import argparse
from pathlib import Path
from typing import Any

from harness.commands.options import PASSED, ready_to_report
from harness.outside import BadInput, NotReadable, read_file, read_json

HELP = "make HTML pages of documents and bundles"
# A campaign of millions of cases has less.
MOST_BYTES = 1 << 28


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="DOCUMENT|BUNDLE",
        help="what --json printed, conformance.json, the folder of a bundle, or its id",
    )
    parser.add_argument(
        "--out",
        dest="report",
        default="report",
        metavar="DIR",
        help="where to write them; default: report",
    )


def run(options: argparse.Namespace) -> int:
    from harness.report.html import pages_of, save

    ready_to_report(options)
    # Read all before any page is written: a missing page is easily overlooked.
    found = [pages_of(name, read_document(name)) for name in options.names]
    written = [save(Path(options.report), pages) for pages in found]
    for pages in written:
        print(pages[0])  # noqa: T201 - the answer
    return PASSED


def read_document(name: str) -> Any:
    """What is in a file, or the record of a bundle."""
    file = Path(name)
    if not file.is_file():
        from harness.failure.bundle import find_bundle
        from harness.failure.bundle.read import RECORD

        file = find_bundle(name) / RECORD
    try:
        return read_json(read_file(file.resolve(), MOST_BYTES))
    except OSError as error:
        raise BadInput(f"document={name}: cannot be read: {error.strerror}") from None
    except NotReadable as error:
        raise BadInput(f"document={name}: {error}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"document={name}: is not JSON") from None
