"""The goldens of this project are whole, confirmed, small, and each shows the bugs it hunts."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.candidates.bank import STAGES
from harness.candidates.own.mutants import NATIVE
from harness.cli import main
from harness.compare import Change, Verdict, drift
from harness.generation.situations import SITUATIONS
from harness.golden import Golden, Store, examine
from harness.golden.generate import find_unconfirmed, make
from harness.golden.tensors import tensor_bytes
from harness.golden.verify import golden_jobs, verify
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.asking import DIALECTS
from properties.helpers.stores import PLACE
from properties.helpers.traces import scaled

# Bytes of the whole store.
LARGEST = 5_000_000
# Anomalies of runs that give no numbers, so that no golden can show them.
FAULTS = {"collective-mismatch", "crashed", "vacuous"}


@pytest.fixture(scope="module")
def goldens() -> dict[str, Golden]:
    found, damages = examine(Store(PLACE).files())
    assert damages == []
    return found


def test_the_store_has_many_goldens_and_is_small(goldens: dict[str, Golden]) -> None:
    assert len(goldens) >= 40
    assert sum(len(data) for data in Store(PLACE).files().values()) < LARGEST


@pytest.mark.slow
@pytest.mark.parametrize("every_mesh", [False, pytest.param(True, marks=pytest.mark.long)])
def test_both_dialects_agree_with_every_golden_on_its_own_mesh_and_on_others(
    every_mesh: bool, goldens: dict[str, Golden], harness_pool: RankPool
) -> None:
    all_jobs = golden_jobs(goldens, [*map(locate, DIALECTS)], (1, 2, 4), harness_pool.size)
    chosen = [
        golden_job
        for golden_job in all_jobs
        if every_mesh or golden_job.job.case == goldens[golden_job.name].vector.case
    ]
    verified = verify(chosen, len(goldens), Session(harness_pool))
    assert [f"{name}\n{each['explanation']}" for name, each in verified.failures.items()] == []
    assert set(verified.verdicts) <= {"EQUAL", "WITHIN"}
    # One golden needs more ranks. The others run with both dialects, mostly on several meshes.
    assert len(chosen) >= (6 * len(goldens) if every_mesh else 2 * (len(goldens) - 1))


@pytest.mark.slow
def test_every_mutant_that_a_golden_hunts_fails_on_it(
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


def test_goldens_that_are_generated_from_vectors_mean_the_same_as_the_committed_ones(
    goldens: dict[str, Golden], tmp_path: Path
) -> None:
    shutil.copytree(PLACE / "vectors", tmp_path / "vectors")
    assert main(["golden", "generate", "--store", str(tmp_path)]) == 0
    made = Store(tmp_path).files()
    again, damages = examine(made)
    assert damages == []
    assert again.keys() == goldens.keys()
    for name, golden in goldens.items():
        assert again[name].vector == golden.vector
        # This processor may round in another way than the one that made the committed goldens.
        moved = drift(golden.stored.trace, again[name].stored.trace)
        assert moved.change is not Change.SEMANTIC, name
    for golden in list(again.values())[:5]:
        # Here it rounds in the same way each time.
        twice = make(golden.vector, golden.stored.made, golden.listed.commit)
        assert tensor_bytes(twice.stored) == tensor_bytes(golden.stored)


def test_every_situation_and_every_anomaly_has_a_golden(goldens: dict[str, Golden]) -> None:
    met = {name for golden in goldens.values() for name in golden.vector.situations}
    assert SITUATIONS.keys() - met == set()
    hunted = [NATIVE[key] for golden in goldens.values() for key in golden.vector.hunts]
    named = {mutant.anomaly for mutant in NATIVE.values()}
    assert named - {mutant.anomaly for mutant in hunted} == FAULTS
    stages = [mutant.stage for mutant in hunted]
    assert min(stages.count(stage) for stage in STAGES) >= 2


def test_every_golden_has_a_comment_a_source_and_a_commit(goldens: dict[str, Golden]) -> None:
    for name, golden in goldens.items():
        assert len(golden.vector.comment) > 20, name
        assert golden.vector.source, name
        assert golden.listed.commit != "unknown", name


def test_the_batches_of_the_notebook_and_layouts_that_show_or_hide_bugs_are_stored(
    goldens: dict[str, Golden],
) -> None:
    cases = [golden.vector.case for golden in goldens.values()]
    batches = {tuple(map(case.ids_of, range(len(case.rows)))) for case in cases}
    assert ((1, 2, 3, 4), (5, 6, 7)) in batches
    assert ((20, 42, 1, 19, 85), (25, 33, 7, 68, 9)) in batches
    assert {tuple(map(len, case.rows)) for case in cases} >= {
        *((7, 3, 9), (7, 4, 8)),
        *((7, 9, 4), (4, 10, 6)),
    }


@pytest.mark.parametrize(
    ("share", "verdict"),
    # The two references may differ by the first share, and not by the second.
    [(1e-10, Verdict.WITHIN), (1e-6, Verdict.FAULT)],
)
def test_a_golden_with_wrong_tensors_is_unconfirmed_and_no_candidate_is_blamed(
    share: float, verdict: Verdict, goldens: dict[str, Golden], harness_pool: RankPool
) -> None:
    golden = goldens["two-equal-rows"]
    off = scaled(golden.stored.trace, 1 + share)
    changed = replace(golden, stored=replace(golden.stored, trace=off))
    assert "the padded reference differs" in dict(find_unconfirmed({"one": changed}))["one"]
    job = Job(golden.vector.case, locate("native-local"), stored=off)
    comparison = Session(harness_pool).judge_one(job, closely=False)
    assert comparison.verdict is verdict, explain(comparison)
    message = "what is stored and the row-wise oracle disagree: "
    assert (message in explain(comparison)) == (verdict is Verdict.FAULT)
