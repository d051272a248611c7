"""The test beside a page, written for the library's own tests; it needs nothing of the harness."""

from pathlib import Path

from harness.candidates.published.bugs import Bug
from harness.candidates.published.library import Library
from harness.conformance.scripts import FOLDER
from harness.conformance.upstream_patches import MENDS, upstream_patch_of

TESTS = "tests"


def upstream_test_of(library: Library, bug: Bug, docs: Path) -> Path:
    """Return the path of the test that a bug has for the tests of its library."""
    return docs / FOLDER / library.name / TESTS / f"test_{bug.key.replace('-', '_')}.py"


def upstream_test_section(library: Library, bug: Bug, docs: Path) -> list[str]:
    """Return the paragraphs of a page about its test; none if there is no test."""
    if not bug.test:
        return []
    test = f"{TESTS}/{upstream_test_of(library, bug, docs).name}"
    patch = f"{MENDS}/{upstream_patch_of(library, bug, docs).name}"
    text = (
        f"[{test}]({test}) is written for the tests of {bug.addressee}, as `{bug.test}`. It needs "
        f"no GPU and nothing of the harness. On {library.distribution} {library.pinned} it fails. "
        f"With [{patch}]({patch}) it passes."
    )
    commands = f"```\npytest {bug.test}\ngit apply {bug.key}.patch\npytest {bug.test}\n```"
    return ["## Test", text, commands]
