"""The tests that pages offer to the libraries fail on their releases, and pass with the mend."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.candidates.published.bugs import Bug
from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Library, libraries
from harness.conformance import upstream_patch_of, upstream_test_of
from harness.conformance.scripts import shell
from harness.conformance.upstream_reports import file_of, findings_of
from properties.helpers.patched import changed_file, package_of, patch_copy
from properties.helpers.places import ROOT

DOCS = ROOT / "docs"
OFFERED = [
    (library, bug) for library in libraries().values() for bug in findings_of(library) if bug.test
]

each_test = pytest.mark.parametrize(
    ("library", "bug"), OFFERED, ids=[f"{library.name}-{bug.key}" for library, bug in OFFERED]
)


def test_the_folders_of_tests_hold_what_the_pages_offer_and_nothing_else() -> None:
    offered = {upstream_test_of(library, bug, DOCS) for library, bug in OFFERED}
    kept = (DOCS / "findings").glob("*/tests/**/*")
    assert {path for path in kept if "__pycache__" not in path.parts} == offered
    assert len(OFFERED) >= 6


@each_test
def test_a_page_links_its_test_and_its_patch(library: Library, bug: Bug) -> None:
    page = DOCS / file_of(library, bug)
    found = re.findall(r"\]\(((?:tests|mends)/[^)]*)\)", page.read_text())
    linked = {page.parent / link for link in found}
    assert linked == {upstream_test_of(library, bug, DOCS), upstream_patch_of(library, bug, DOCS)}
    assert f"\npytest {bug.test}\n" in page.read_text()


@each_test
def test_a_test_for_a_library_stands_alone(library: Library, bug: Bug) -> None:
    path = upstream_test_of(library, bug, DOCS)
    imports = [
        (node, getattr(node, "module", None) or alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    assert not any(getattr(node, "level", 0) for node, _ in imports)
    roots = {name.partition(".")[0] for _, name in imports}
    assert roots.isdisjoint({"harness", "properties"})
    # The package is imported, or found to be loaded by its path.
    package = package_of(upstream_patch_of(library, bug, DOCS), bug)
    assert package in roots or f"find_spec('{package}')" in path.read_text()
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    # Others read it as a file of their own: with their licence, and without ours.
    assert path.read_text().startswith("# Copyright ")
    assert not re.search(r"\bharness\b", path.read_text())


@each_test
def test_a_patch_changes_the_file_that_the_page_names(library: Library, bug: Bug) -> None:
    named = re.split(r":| ", bug.where)[0]
    assert f"/{changed_file(upstream_patch_of(library, bug, DOCS))}".endswith(f"/{named}")


@pytest.mark.library
@each_test
def test_a_test_for_a_library_fails_on_its_release_and_passes_with_the_patch(
    library: Library, bug: Bug, tmp_path: Path
) -> None:
    environment = Environment(library, library.pinned)
    if not environment.installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    shutil.copy(upstream_test_of(library, bug, DOCS), tmp_path)
    passed, failed = outcomes(environment.python, tmp_path)
    # Its own controls pass where the bug is out of reach.
    assert passed
    assert failed
    patch_copy(environment, upstream_patch_of(library, bug, DOCS), bug, tmp_path)
    assert outcomes(environment.python, tmp_path) == (passed + failed, 0)


def outcomes(python: str, folder: Path) -> tuple[int, int]:
    """Run the tests in a folder -> how many passed and failed."""
    # pytest's plugins here are the harness's. It ends with 1 if tests fail, with more on an error.
    command = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {python} -m pytest -q -p no:cacheprovider"
    *_, last = shell(f"{command} test_*.py || [ $? = 1 ]", folder).splitlines()
    counts = {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", last)}
    assert "error" not in last
    return counts.get("passed", 0), counts.get("failed", 0)
