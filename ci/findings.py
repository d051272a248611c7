#!/usr/bin/env -S .venv/bin/python
"""Run the scripts beside the pages of findings as the pages say, and keep what they print.

Run it as `.venv/bin/python ci/findings.py [LIBRARY ...]`; without names it takes all libraries.
Each library gets an environment in an empty folder. What a script prints goes into a file beside
it; `ci/docs.py` then puts it on the page. A script has to end with 1, and with --control with 0.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from project import ROOT

from harness.candidates.published.bugs import Bug
from harness.candidates.published.library import Library, libraries
from harness.conformance.scripts import (
    install,
    make,
    runs,
    script_of,
    statuses,
    transcript,
    transcript_of,
)
from harness.conformance.upstream_reports import findings_of

DOCS = ROOT / "docs"


def main() -> int:
    known = libraries()
    failed = [
        f"{library.name} {bug.key}"
        for library in (known[name] for name in sys.argv[1:] or known)
        for bug in unproved(library)
    ]
    for name in failed:
        print(f"{name}: does not end with 1, and with --control with 0")
    return int(bool(failed))


def unproved(library: Library) -> list[Bug]:
    """Run all scripts of a library -> the bugs that these do not show."""
    with_script = [bug for bug in findings_of(library) if script_of(library, bug, DOCS).is_file()]
    if not with_script:
        return []
    with TemporaryDirectory() as name:
        folder = Path(name)
        make(install(library), folder)
        return [bug for bug in with_script if not is_proved(library, bug, folder)]


def is_proved(library: Library, bug: Bug, folder: Path) -> bool:
    """Run a script in a folder with an environment, and keep what it prints."""
    shutil.copy(script_of(library, bug, DOCS), folder)
    text = transcript(runs(bug), folder)
    print(f"{library.name} {bug.key}\n{text}", flush=True)
    transcript_of(library, bug, DOCS).write_text(text)
    return statuses(text) == [1, 0]


if __name__ == "__main__":
    sys.exit(main())
