"""Every folder of a published library is complete and can be read without the library."""

import ast
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from harness.against import RECIPE_LIMITS
from harness.anomalies import ANOMALIES
from harness.candidates.published.bugs import Bug, about, bugs
from harness.candidates.published.library import Library, libraries
from harness.case import Case, Dtype, Kernel, Model
from harness.case.stated import violated_limit
from harness.compare import Look, Verdict
from harness.compare.differing import Differing
from harness.compare.measurement import Divergence, KeyResult
from harness.conformance import (
    by_library,
    finding_names,
    finding_record,
    findings,
    not_findings,
    page,
    read,
    script_of,
    transcript_of,
    upstream_reports,
    write,
)
from harness.conformance.scripts import PROMPT, runs
from harness.conformance.upstream_reports import file_of
from harness.failure.script import script
from harness.generation import cases, draw_list
from harness.generation.situations.needs import lacking
from harness.golden.vector import parse_vector
from properties.helpers.comparisons import comparison_with
from properties.helpers.places import ROOT

DOCS = ROOT / "docs"
VECTORS = ROOT / "golden" / "vectors"
LIBRARIES = list(libraries().values())
LISTED = [(library, bug) for library in LIBRARIES for bug in bugs(library)]
FINDINGS = [(library, bug) for library, bug in LISTED if bug.grade in ("A", "B")]


def steps(library: Library) -> set[str]:
    """Read the keys of a library's table of steps, which only its ranks can import."""
    for node in ast.parse((library.folder / "candidate.py").read_text()).body:
        match node:
            case ast.Assign([ast.Name("STEPS")], ast.Dict(keys)) | ast.AnnAssign(
                ast.Name("STEPS"), _, ast.Dict(keys)
            ):
                return {ast.literal_eval(key) for key in keys if key}
    raise AssertionError("candidate.py has a table of STEPS, written out")


@cache
def drawn() -> tuple[Case, ...]:
    """Draw cases once for all libraries, since drawing takes longer than checking limits."""
    strategy = cases(
        dtypes=get_args(Dtype), architectures=get_args(Model), kernels=get_args(Kernel)
    )
    return tuple(draw_list(strategy, 300, 0))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_folder_holds_requirements_steps_limits_and_a_readme(library: Library) -> None:
    assert library.requirements
    assert steps(library) == set(library.limits)
    readme = (library.folder / "README.md").read_text()
    assert [key for key in library.limits if f"`{key}`" not in readme] == []


@pytest.mark.parametrize(
    "library", [each for each in LIBRARIES if each.recipes], ids=lambda library: library.name
)
def test_a_step_with_a_recipe_takes_one_step_whose_loss_is_its_own(library: Library) -> None:
    assert library.recipes.keys() <= library.limits.keys()
    for key in library.recipes:
        assert set(RECIPE_LIMITS.split()) <= set(library.stated[key].split())


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_stated_limits_exclude_no_case_that_a_step_supports(library: Library) -> None:
    assert library.stated.keys() <= library.limits.keys()
    for key, limits in library.stated.items():
        for case in drawn():
            if violated_limit(case, limits, case.ranks):
                assert library.limits[key](case) is not None, f"{key}, {limits}: {case}"


def test_every_library_that_the_readme_names_has_a_folder() -> None:
    assert {library.distribution for library in LIBRARIES} >= {
        *("verl", "deepspeed", "ms-swift", "veomni"),
        *("llamafactory", "xtuner", "yunchang", "ring-flash-attn"),
    }


@pytest.mark.parametrize(
    ("library", "bug"), LISTED, ids=[f"{library.name}-{bug.key}" for library, bug in LISTED]
)
def test_a_listed_bug_fits_its_case_its_golden_and_its_library(library: Library, bug: Bug) -> None:
    assert set(bug.looks) <= ANOMALIES.keys()
    assert bug.named in ANOMALIES if bug.is_in(library.pinned) else not bug.named
    assert set(bug.candidate) <= library.limits.keys()
    assert lacking(bug.case, bug.when) == []
    assert library.limits[bug.candidate[0]](bug.case) is None
    assert [other.key for other in bugs(library)].count(bug.key) == 1
    # The golden has the same batch, but may have another mesh, dtype and kernel.
    stored = parse_vector(bug.golden, (VECTORS / f"{bug.golden}.json").read_bytes()).case
    assert (
        replace(stored, sp=bug.case.sp, dtype=bug.case.dtype, kernel=bug.case.kernel) == bug.case
    )
    # The report to its maintainers needs these.
    assert bug.where
    assert bug.says.endswith(".")
    assert bug.differs == "" or (bug.named and bug.differs.endswith("."))


@pytest.mark.parametrize(
    ("library", "bug"), LISTED, ids=[f"{library.name}-{bug.key}" for library, bug in LISTED]
)
def test_a_listed_bug_has_a_short_script_with_its_pins(library: Library, bug: Bug) -> None:
    source = script_source(library, bug)
    assert len(source.splitlines()) <= 200
    assert f"'{bug.case}'," in source
    imports = rf"^(from|import) ({re.escape(library.module)}|{library.name})\b"
    assert re.search(imports, source, re.MULTILINE)
    head = ast.get_docstring(ast.parse(source)) or ""
    assert [pin for pin in library.requirements if pin not in head] == []


def test_a_script_defines_all_that_it_uses_and_imports_nothing_else(tmp_path: Path) -> None:
    for library, bug in LISTED:
        (tmp_path / f"{library.name}-{bug.key}.py").write_text(script_source(library, bug))
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("library", "bug"), LISTED, ids=[f"{library.name}-{bug.key}" for library, bug in LISTED]
)
def test_a_listed_bug_is_told_graded_and_mended(library: Library, bug: Bug) -> None:
    assert bug.title
    assert bug.title[-1] != "."
    assert bug.mend.endswith(".")
    assert bug.main
    assert bug.newest.endswith(".")
    assert bug.graded == "" if bug.grade == "A" else bug.graded.endswith(".")
    # Whoever says that the documentation calls it unsupported says where.
    assert bug.reach != "documented as unsupported" or bug.documented
    assert bug.tensors != ("*",)
    # A bug that makes ranks raise or hang affects no tensor.
    assert bool(bug.tensors) != (set(bug.looks) <= {"crashed", "collective-mismatch"})
    # A mend takes the bug away, so that it cannot hide another one.
    assert (bug.key in library.mends) or not bug.is_in(library.pinned)


def test_a_shared_cause_has_pages_that_link_each_other() -> None:
    causes: dict[str, list[Path]] = {}
    for library, bug in FINDINGS:
        if bug.cause:
            causes.setdefault(bug.cause, []).append(DOCS / file_of(library, bug))
    assert len(causes) >= 6
    for cause, paths in causes.items():
        assert cause[-1] == "."
        assert len({path.parent for path in paths}) >= 2
        for path in paths:
            (fact,) = re.findall(r"^- same cause: (.*)$", path.read_text(), re.MULTILINE)
            linked = {path.parent / link for link in re.findall(r"\]\((\S+)\)", fact)}
            others = {other for other in paths if other != path}
            assert {link.resolve() for link in linked} == others


@pytest.mark.parametrize(
    ("library", "bug"), FINDINGS, ids=[f"{library.name}-{bug.key}" for library, bug in FINDINGS]
)
def test_a_finding_is_complete_enough_to_report(library: Library, bug: Bug) -> None:
    if not bug.is_in(library.pinned):
        return
    # The page and the script must be enough for a reader without the harness.
    source = script_of(library, bug, DOCS).read_text()
    assert len(source.splitlines()) <= 100
    assert not re.search(r"\bharness\b", source)
    assert bug.title in " ".join((ast.get_docstring(ast.parse(source)) or "").split())


@pytest.mark.parametrize(
    ("library", "bug"), FINDINGS, ids=[f"{library.name}-{bug.key}" for library, bug in FINDINGS]
)
def test_a_script_has_a_control_and_a_transcript_of_both(library: Library, bug: Bug) -> None:
    source = script_of(library, bug, DOCS).read_text()
    assert bug.control.endswith(".")
    head = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    assert f"With --control {bug.control}" in head
    shown = transcript_of(library, bug, DOCS).read_text()
    first, second = shown.split(PROMPT)[1:]
    for command, run, status in zip(runs(bug), (first, second), (1, 0), strict=True):
        asked, *printed, ended = run.splitlines()
        assert (asked, ended) == (command, f"exit status {status}")
        # A reader sees what is wrong, and that it is not with the control.
        assert "expected" in "".join(printed)
        assert "got" in "".join(printed)


def test_what_is_no_finding_has_no_page_and_stands_with_its_reason() -> None:
    beside = {(path.parent.name, path.stem) for path in (DOCS / "findings").glob("*/*.*")}
    others = [(library, bug) for library, bug in LISTED if bug.grade in ("C", "D")]
    assert beside == {(library.name, bug.key) for library, bug in FINDINGS}
    lines = (DOCS / "not-findings.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert len(rows) == len(others)
    for (library, bug), row in zip(others, rows, strict=True):
        # A bar inside a cell is escaped there.
        told = row.replace("\\|", "|")
        assert told.startswith(f"| {library.distribution} | {bug.grade} | {bug.title} |")
        assert told.endswith(f"| {bug.graded} |")


def test_the_readme_counts_only_bugs_that_a_maintainer_would_take_as_they_are() -> None:
    results = read(DOCS)
    heads, *rows = by_library(results)
    counted = {row[0]: int(row[heads.index("bugs")]) for row in rows}
    for library in LIBRARIES:
        steps = [
            each
            for name, each in results["candidates"].items()
            if name.startswith(f"{library.name}.")
        ]
        seen = {key for each in steps for key in each["listed"] if key not in each["stale"]}
        accepted = {bug.key for bug in bugs(library) if bug.grade == "A"}
        assert counted[library.name] == len(seen & accepted)
    assert sum(counted.values()) < len(FINDINGS)


def test_the_readme_names_a_newest_release_only_if_it_was_not_judged() -> None:
    heads, *rows = by_library(read(DOCS))
    for row in rows:
        known, newest = about(libraries()[row[0]]), row[heads.index("newest")]
        if known.newest in ("", row[heads.index("release")]):
            assert newest == ""
        else:
            assert newest.startswith(known.newest)
            assert newest.endswith("not judged")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_each_library_has_advice_for_its_users(library: Library) -> None:
    advice = about(library)
    assert advice.stars > 0
    assert advice.today.endswith(".")
    assert advice.released
    assert library.mends.keys() <= {bug.key for bug in bugs(library)}


def test_records_of_findings_match_the_folders() -> None:
    found = read(DOCS)["findings"]
    assert found.keys() <= finding_names()
    for name, record in found.items():
        assert finding_record(name.partition(" ")[2], record) == record, f"{name}: run ci/docs.py"


def script_source(library: Library, bug: Bug) -> str:
    """Write the script of a failure that is made by hand, since the library cannot run here."""
    expected = np.linspace(-2, 3, 40).reshape(2, 20)
    kept = Differing(key="grad.embed", shape=expected.shape, expected=expected, got=expected + 1)
    failure = comparison_with(
        case=bug.case,
        candidate=f"{library.name}.{bug.candidate[0]}",
        verdict=Verdict.DIVERGED,
        first=Divergence("grad.embed", (1, 0), expected[1, 0], expected[1, 0] + 1, 1.0, 1e-5),
        keys=(KeyResult("loss", 1, 1, 9.0), KeyResult("grad.embed", 40, 40, 9.0)),
        seen=tuple(Look(looks, "why") for looks in bug.looks),
        loss=(1.25, 1.5),
        differing=(kept,),
    )
    return script(failure, "cpu gloo 1", 20)


def test_the_pages_are_made_from_the_measured_results() -> None:
    results = read(DOCS)
    assert (DOCS / "conformance.md").read_text() == page(results)
    assert (DOCS / "findings.md").read_text() == findings(LIBRARIES)
    assert (DOCS / "not-findings.md").read_text() == not_findings(LIBRARIES)
    written = dict(upstream_reports(LIBRARIES, results, DOCS))
    assert {name: (DOCS / name).read_text() for name in written} == written
    assert {f"{path.relative_to(DOCS)}" for path in (DOCS / "findings").glob("*/*.md")} == set(
        written
    )
    measured = {name.partition(".")[0] for name in results["candidates"]}
    assert measured >= {library.name for library in LIBRARIES}


def test_the_results_document_has_one_line_for_each_candidate_and_nothing_unused(
    tmp_path: Path,
) -> None:
    results = read(DOCS)
    write(tmp_path, results)
    text = (DOCS / "conformance.json").read_text()
    assert (tmp_path / "conformance.json").read_text() == text
    assert text.count("\n") <= len(results["candidates"]) + len(results["findings"]) + 14
