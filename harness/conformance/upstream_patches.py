"""The patch beside a page, which mends its bug in the library's repository."""

import re
from pathlib import Path

from harness.candidates.published.bugs import Bug
from harness.candidates.published.library import Library
from harness.conformance.scripts import FOLDER

MENDS = "mends"


def upstream_patch_of(library: Library, bug: Bug, docs: Path) -> Path:
    """Return the path of the patch that mends a bug in its library's repository."""
    return docs / FOLDER / library.name / MENDS / f"{bug.key}.patch"


def refuses(patch: Path) -> bool:
    """Whether a patch makes the library raise where it went wrong."""
    # The line that raises may be there already, behind a narrower condition.
    return bool(re.search(r"^[+ ] +raise ", patch.read_text(), re.MULTILINE))


def upstream_mend_section(library: Library, bug: Bug, docs: Path) -> list[str]:
    """Return the paragraphs of a page about its mend, and about what was tried of it."""
    parts = ["## How it could be mended", bug.mend]
    patch = upstream_patch_of(library, bug, docs)
    if patch.is_file():
        name = f"{MENDS}/{patch.name}"
        does = "raises its error" if refuses(patch) else "ends with 0"
        parts.append(
            f"[{name}]({name}) does this. With it the script above {does}, and with `--control` "
            "it ends with 0 as before."
        )
    return parts
