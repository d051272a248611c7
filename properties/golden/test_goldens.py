"""The goldens of this project: whole, confirmed, agreed with, and each tells a bug apart."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.candidates.bank import STAGES
from harness.candidates.own.mutants import BANK
from harness.cli import main
from harness.compare import Change, Verdict, drift
from harness.generation.situations import SITUATIONS
from harness.golden import Golden, Store, examine
from harness.golden.generate import make, unconfirmed
from harness.golden.tensors import tensor_bytes
from harness.golden.verify import jobs, verify
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.asking import DIALECTS
from properties.helpers.stores import PLACE
from properties.helpers.traces import scaled

LARGEST = 5_000_000
# What is told by a run that does not come to its end, or examined nothing.
FAULTS = {"collective-mismatch", "crashed", "vacuous"}


@pytest.fixture(scope="module")
def goldens() -> dict[str, Golden]:
    found, damages = examine(Store(PLACE).files())
    assert damages == []
    return found


def test_there_are_many_and_they_are_small(goldens: dict[str, Golden]) -> None:
    assert len(goldens) >= 40
    assert sum(len(data) for data in Store(PLACE).files().values()) < LARGEST


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=pytest.mark.long)])
def test_both_dialects_agree_with_them_on_their_own_mesh_and_elsewhere(
    elsewhere: bool, goldens: dict[str, Golden], harness_pool: RankPool
) -> None:
    everywhere = jobs(goldens, [*map(locate, DIALECTS)], (1, 2, 4), harness_pool.size)
    asked = [
        each for each in everywhere if elsewhere or each.job.case == goldens[each.name].vector.case
    ]
    verified = verify(asked, len(goldens), Session(harness_pool))
    assert [f"{name}\n{each['explanation']}" for name, each in verified.failures.items()] == []
    assert set(verified.verdicts) <= {"EQUAL", "WITHIN"}
    # One golden needs more ranks; the others were there for both, mostly on several meshes.
    assert len(asked) >= (6 * len(goldens) if elsewhere else 2 * (len(goldens) - 1))


@pytest.mark.slow
def test_each_tells_apart_what_it_hunts(
    goldens: dict[str, Golden], harness_pool: RankPool
) -> None:
    hunts = [
        Job(golden.vector.case, locate(f"mutants.{key}"), stored=golden.stored.trace)
        for golden in goldens.values()
        for key in golden.vector.hunts
        if golden.vector.case.ranks <= harness_pool.size
    ]
    missed = [
        f"{comparison.candidate}: {comparison.case}"
        for comparison in Session(harness_pool).judge(hunts, closely=False)
        if comparison.verdict not in (Verdict.DIVERGED, Verdict.FAULT)
    ]
    assert missed == []
    assert len(hunts) >= 40


def test_regenerated_from_nothing_they_are_what_is_committed(
    goldens: dict[str, Golden], tmp_path: Path
) -> None:
    shutil.copytree(PLACE / "vectors", tmp_path / "vectors")
    assert main(["golden", "generate", "--store", str(tmp_path)]) == 0
    made = Store(tmp_path).files()
    again, damages = examine(made)
    assert damages == []
    assert again.keys() == goldens.keys()
    for name, golden in goldens.items():
        ours, theirs = golden.stored, again[name].stored
        assert again[name].vector == golden.vector
        # Another processor, even of the same kind, may round otherwise.
        assert drift(ours.trace, theirs.trace).change is not Change.SEMANTIC, name
    for golden in list(again.values())[:5]:
        # On one it never does.
        twice = make(golden.vector, golden.stored.made, golden.listed.commit)
        assert tensor_bytes(twice.stored) == tensor_bytes(golden.stored)


def test_every_situation_and_every_kind_of_bug_has_one(goldens: dict[str, Golden]) -> None:
    met = {name for golden in goldens.values() for name in golden.vector.situations}
    assert SITUATIONS.keys() - met == set()
    hunted = [BANK[key] for golden in goldens.values() for key in golden.vector.hunts]
    named = {mutant.anomaly for mutant in BANK.values()}
    assert named - {mutant.anomaly for mutant in hunted} == FAULTS
    stages = [mutant.stage for mutant in hunted]
    assert min(stages.count(stage) for stage in STAGES) >= 2


def test_each_says_what_it_is_there_for(goldens: dict[str, Golden]) -> None:
    for name, golden in goldens.items():
        assert len(golden.vector.comment) > 20, name
        assert golden.vector.source, name
        assert golden.listed.commit != "unknown", name


def test_the_notebooks_batches_and_the_layouts_that_show_and_hide_bugs_are_there(
    goldens: dict[str, Golden],
) -> None:
    there = [golden.vector.case for golden in goldens.values()]
    batches = {tuple(map(case.ids_of, range(len(case.rows)))) for case in there}
    assert ((1, 2, 3, 4), (5, 6, 7)) in batches
    assert ((20, 42, 1, 19, 85), (25, 33, 7, 68, 9)) in batches
    assert {tuple(map(len, case.rows)) for case in there} >= {
        *((7, 3, 9), (7, 4, 8)),
        *((7, 9, 4), (4, 10, 6)),
    }


@pytest.mark.parametrize(
    ("share", "verdict"),
    # The references themselves may differ by so much, and by so much they may not.
    [(1e-10, Verdict.WITHIN), (1e-6, Verdict.FAULT)],
)
def test_a_golden_whose_tensors_are_off_is_noticed_and_no_candidate_blamed(
    share: float, verdict: Verdict, goldens: dict[str, Golden], harness_pool: RankPool
) -> None:
    golden = goldens["two-equal-rows"]
    off = scaled(golden.stored.trace, 1 + share)
    changed = replace(golden, stored=replace(golden.stored, trace=off))
    assert "the padded reference differs" in dict(unconfirmed({"one": changed}))["one"]
    job = Job(golden.vector.case, locate("native-local"), stored=off)
    comparison = Session(harness_pool).judge_one(job, closely=False)
    assert comparison.verdict is verdict, explain(comparison)
    said = "what is stored and the row-wise oracle disagree: "
    assert (said in explain(comparison)) == (verdict is Verdict.FAULT)
