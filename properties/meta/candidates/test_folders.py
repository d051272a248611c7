"""Every folder of a published library holds what it should, readable without the library."""

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

from harness.anomalies import ANOMALIES
from harness.candidates.published.bugs import Bug, about, bugs
from harness.candidates.published.library import Library, libraries
from harness.case import Case, Dtype, Kernel, Model
from harness.case.stated import outside
from harness.compare import Comparison, Look, Verdict
from harness.compare.comparison import Divergence, KeyResult
from harness.compare.differing import Differing
from harness.conformance import (
    finding_record,
    findings,
    page,
    read,
    script_of,
    upstream_reports,
    write,
)
from harness.failure.script import script
from harness.generation import cases, generate
from harness.generation.situations.needs import lacking
from harness.golden.vector import parse_vector
from properties.helpers.places import ROOT

DOCS = ROOT / "docs"
VECTORS = ROOT / "golden" / "vectors"
LIBRARIES = list(libraries().values())
LISTED = [(library, bug) for library in LIBRARIES for bug in bugs(library)]


def steps(library: Library) -> set[str]:
    """The keys of its table of steps, which only its ranks can import."""
    for node in ast.parse((library.folder / "candidate.py").read_text()).body:
        match node:
            case ast.Assign([ast.Name("STEPS")], ast.Dict(keys)) | ast.AnnAssign(
                ast.Name("STEPS"), _, ast.Dict(keys)
            ):
                return {ast.literal_eval(key) for key in keys if key}
    raise AssertionError("candidate.py has a table of STEPS, written out")


@cache
def drawn() -> tuple[Case, ...]:
    """The same for all: to draw a case takes longer than to ask a limit about it."""
    strategy = cases(
        dtypes=get_args(Dtype), architectures=get_args(Model), kernels=get_args(Kernel)
    )
    return tuple(generate(strategy, 300, 0))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_folder_holds_what_it_should(library: Library) -> None:
    assert library.requirements
    assert steps(library) == set(library.limits)
    told = (library.folder / "README.md").read_text()
    assert [key for key in library.limits if f"`{key}`" not in told] == []


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_what_is_stated_leaves_out_nothing_that_a_step_supports(library: Library) -> None:
    assert library.stated.keys() <= library.limits.keys()
    for key, limits in library.stated.items():
        for case in drawn():
            if outside(case, limits, case.ranks):
                assert library.limits[key](case) is not None, f"{key}, {limits}: {case}"


def test_every_library_that_the_readme_names_has_a_folder() -> None:
    assert {library.distribution for library in LIBRARIES} >= {
        *("verl", "deepspeed", "ms-swift", "veomni"),
        *("llamafactory", "xtuner", "yunchang", "ring-flash-attn"),
    }


@pytest.mark.parametrize(
    ("library", "bug"), LISTED, ids=[f"{library.name}-{bug.key}" for library, bug in LISTED]
)
def test_what_is_listed_can_be_seen_where_it_says(library: Library, bug: Bug) -> None:
    assert set(bug.looks) <= ANOMALIES.keys()
    assert bug.named in ANOMALIES if bug.is_in(library.pinned) else not bug.named
    assert set(bug.candidate) <= library.limits.keys()
    assert lacking(bug.case, bug.when) == []
    assert library.limits[bug.candidate[0]](bug.case) is None
    assert [other.key for other in bugs(library)].count(bug.key) == 1
    # The golden is of the same batch, whatever its mesh, dtype and kernel.
    stored = parse_vector(bug.golden, (VECTORS / f"{bug.golden}.json").read_bytes()).case
    assert (
        replace(stored, sp=bug.case.sp, dtype=bug.case.dtype, kernel=bug.case.kernel) == bug.case
    )
    # As one would tell its maintainers.
    assert bug.where
    assert bug.says.endswith(".")
    assert bug.differs == "" or (bug.named and bug.differs.endswith("."))


@pytest.mark.parametrize(
    ("library", "bug"), LISTED, ids=[f"{library.name}-{bug.key}" for library, bug in LISTED]
)
def test_what_is_listed_has_a_script_that_one_can_read(library: Library, bug: Bug) -> None:
    source = shown(library, bug)
    assert len(source.splitlines()) <= 200
    assert f"'{bug.case}'," in source
    imports = rf"^(from|import) ({re.escape(library.module)}|{library.name})\b"
    assert re.search(imports, source, re.MULTILINE)
    head = ast.get_docstring(ast.parse(source)) or ""
    assert [pin for pin in library.requirements if pin not in head] == []


def test_a_script_defines_what_it_uses_and_imports_nothing_else(tmp_path: Path) -> None:
    for library, bug in LISTED:
        (tmp_path / f"{library.name}-{bug.key}.py").write_text(shown(library, bug))
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
def test_a_finding_is_fit_to_be_sent(library: Library, bug: Bug) -> None:
    assert bug.title
    assert bug.title[-1] != "."
    assert bug.mend.endswith(".")
    assert bug.main
    assert bug.tensors != ("*",)
    # Of ranks that raise or hang there is none.
    assert bool(bug.tensors) != (set(bug.looks) <= {"crashed", "collective-mismatch"})
    if not bug.is_in(library.pinned):
        return
    # Who has only the page has all that is needed.
    source = script_of(library, bug, DOCS).read_text()
    assert len(source.splitlines()) <= 100
    assert not re.search(r"\bharness\b", source)
    assert bug.title in " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    # And what is listed may hide nothing else: it can be taken away.
    assert bug.key in library.mends


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_users_are_told_what_to_do(library: Library) -> None:
    told = about(library)
    assert told.stars > 0
    assert told.today.endswith(".")
    scripts = {path.stem for path in (DOCS / "findings" / library.name).glob("*.py")}
    assert scripts | library.mends.keys() <= {bug.key for bug in bugs(library)}


def test_pictures_of_findings_say_what_the_folders_say() -> None:
    for name, record in read(DOCS)["findings"].items():
        assert finding_record(name.partition(" ")[2], record) == record, f"{name}: run ci/docs.py"


def shown(library: Library, bug: Bug) -> str:
    """The script of a failure that says as much as any: the library is not there to be run."""
    expected = np.linspace(-2, 3, 40).reshape(2, 20)
    kept = Differing(key="grad.embed", shape=expected.shape, expected=expected, got=expected + 1)
    failure = Comparison(
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


def test_the_pages_are_made_from_what_was_measured() -> None:
    results = read(DOCS)
    assert (DOCS / "conformance.md").read_text() == page(results)
    assert (DOCS / "findings.md").read_text() == findings(LIBRARIES)
    written = dict(upstream_reports(LIBRARIES, results, DOCS))
    assert {name: (DOCS / name).read_text() for name in written} == written
    assert {f"{path.relative_to(DOCS)}" for path in (DOCS / "findings").glob("*/*.md")} == set(
        written
    )
    measured = {name.partition(".")[0] for name in results["candidates"]}
    assert measured >= {library.name for library in LIBRARIES}


def test_the_document_of_results_has_a_line_for_each_candidate_and_only_what_pages_are_made_from(
    tmp_path: Path,
) -> None:
    results = read(DOCS)
    write(tmp_path, results)
    text = (DOCS / "conformance.json").read_text()
    assert (tmp_path / "conformance.json").read_text() == text
    assert text.count("\n") <= len(results["candidates"]) + len(results["findings"]) + 14
