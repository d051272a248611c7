"""With the patch beside a page its script raises, or is right, as the page says."""

import re
import shutil
from pathlib import Path

import pytest

from harness.candidates.published.bugs import Bug
from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Library, libraries
from harness.conformance import refuses, script_of, upstream_patch_of
from harness.conformance.scripts import shell
from harness.conformance.upstream_reports import file_of, findings_of
from properties.helpers.patched import package_of, patch_copy
from properties.helpers.places import ROOT

DOCS = ROOT / "docs"
PATCHED = [
    (library, bug)
    for library in libraries().values()
    for bug in findings_of(library)
    if upstream_patch_of(library, bug, DOCS).is_file()
]
# Where the documentation calls it unsupported, maintainers take a refusal only.
UNSUPPORTED = [
    (library, bug)
    for library in libraries().values()
    for bug in findings_of(library)
    if bug.grade == "A" and bug.reach == "documented as unsupported"
]
each_patch = pytest.mark.parametrize(
    ("library", "bug"), PATCHED, ids=[f"{library.name}-{bug.key}" for library, bug in PATCHED]
)


def test_the_folders_of_mends_hold_the_patches_of_findings_and_nothing_else() -> None:
    kept = set((DOCS / "findings").glob("*/mends/*"))
    assert kept == {upstream_patch_of(library, bug, DOCS) for library, bug in PATCHED}


def test_what_is_documented_as_unsupported_is_asked_to_be_refused() -> None:
    assert UNSUPPORTED
    for library, bug in UNSUPPORTED:
        assert refuses(upstream_patch_of(library, bug, DOCS)), bug.key


@each_patch
def test_a_page_links_its_patch_which_changes_the_package_of_the_bug(
    library: Library, bug: Bug
) -> None:
    page = DOCS / file_of(library, bug)
    patch = upstream_patch_of(library, bug, DOCS)
    assert f"](mends/{patch.name})" in page.read_text()
    assert package_of(patch, bug)


@pytest.mark.library
@each_patch
def test_with_its_patch_a_script_raises_what_the_patch_adds_or_is_right(
    library: Library, bug: Bug, tmp_path: Path
) -> None:
    environment = Environment(library, library.pinned)
    if not environment.installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    script = script_of(library, bug, DOCS)
    shutil.copy(script, tmp_path)
    patch = upstream_patch_of(library, bug, DOCS)
    patch_copy(environment, patch, bug, tmp_path)
    run = f"{environment.python} {script.name}"
    assert outcome(f"{run} --control", tmp_path)[0] == 0
    status, said = outcome(run, tmp_path)
    if refuses(patch):
        assert status != 0
        assert any(text in said for text in texts_raised(patch)), said
    else:
        assert status == 0, said


def texts_raised(patch: Path) -> list[str]:
    """Return the texts of the errors that a patch adds."""
    return re.findall(r'^\+ +(?:raise \w+\()?f?"([^"{]{20,})', patch.read_text(), re.MULTILINE)


def outcome(command: str, folder: Path) -> tuple[int, str]:
    """Run a command -> its exit status, and all that it writes."""
    *said, status = shell(f"{command} 2>&1; status=$?; echo; echo $status", folder).splitlines()
    return int(status), "\n".join(said)
