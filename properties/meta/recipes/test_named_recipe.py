"""A candidate of the older protocol is held to plain training of a recipe that the user names."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.candidates import locate
from harness.candidates.registry import UnknownCandidate
from harness.case import parse
from harness.cli import main
from harness.commands.options import DIVERGED, PASSED, USAGE
from harness.compare import Comparison, Verdict
from harness.failure.bundle import read_bundle
from harness.golden.own import find_unconfirmed, make
from harness.golden.vector import Vector
from harness.judge import Job, Session
from harness.judge.stages import own_reference
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.trace import Trace, is_required
from harness.untrusted import BadInput
from properties.helpers.judging import diagnosed, evaluate
from properties.helpers.places import PLANTED

FILE = PLANTED / "older.py"
RECIPE = f"{FILE}:RECIPE"
LINE = "case/1 rows=5:01101,4:0111:left heads=2/1 layers=1 vocab=11 sp=2 dp=1 dim=2 seed=3"
OTHER_LOSS = (
    "limits=steps=1 loss=token-mean: loss=token-mean is nothing that was asked for; use "
    "--loss token-mean"
)
COMMAND = ("--against", RECIPE)


def judged(name: str, pool: RankPool, line: str = LINE, against: str = RECIPE) -> Comparison:
    return evaluate(parse(line), f"{FILE}:{name}", pool, against=against)


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_a_right_candidate_passes_and_the_loss_its_metric_and_every_gradient_are_compared(
    dtype: str, pool: RankPool
) -> None:
    comparison = judged("RIGHT", pool, f"{LINE} dtype={dtype}")
    assert comparison.verdict.passed, explain(comparison)
    assert {result.key for result in comparison.measured.keys} == {
        "loss",
        "metric.twice",
        "grad.embed.weight",
        "grad.norm.weight",
        "grad.norm.bias",
        "grad.head.weight",
        "grad.head.bias",
    }
    assert comparison.measured.uncompared == ("nll",)
    assert f"  against plain training of {RECIPE}" in explain(comparison).splitlines()


def test_a_metric_of_the_recipe_need_not_be_emitted(pool: RankPool) -> None:
    assert judged("NO_METRIC", pool).verdict.passed


@pytest.mark.parametrize(("name", "key"), [("NO_NLL", "nll"), ("NO_GRADIENT", "grad.head.bias")])
def test_a_required_tensor_that_is_missing_is_a_fault_that_names_it(
    name: str, key: str, pool: RankPool
) -> None:
    comparison = judged(name, pool)
    assert comparison.fault is not None
    assert f"key {key!r} was never emitted" in comparison.fault.summary


def test_a_metric_that_is_wrong_is_found(pool: RankPool) -> None:
    comparison = judged("WRONG_METRIC", pool)
    assert comparison.measured.first is not None
    assert comparison.measured.first.key == "metric.twice"


def test_a_fault_gets_the_name_that_the_recipe_predicts(pool: RankPool) -> None:
    failure = judged("SCORES", pool)
    assert failure.verdict is Verdict.DIVERGED
    assert diagnosed(failure, pool).inquiry.called == "column-misplaced"


def test_a_recipe_that_fails_is_blamed_by_its_name(pool: RankPool) -> None:
    comparison = judged("RIGHT", pool, against=f"{FILE}:RAISES")
    assert comparison.fault is not None
    assert f"plain training of {FILE}:RAISES: rank 0 raised Zero" in comparison.fault.summary


def test_a_candidate_with_a_recipe_is_held_to_no_other(pool: RankPool) -> None:
    with pytest.raises(BadInput, match="has a recipe of its own, which is what it is compared"):
        judged("WITH_RECIPE", pool)


def test_the_recipe_of_a_step_can_be_named_by_the_step(pool: RankPool) -> None:
    assert judged("RIGHT", pool, against=f"{FILE}:WITH_RECIPE").verdict.passed


@pytest.mark.parametrize("more", ["steps=2", "loss=row-mean"])
def test_a_case_that_no_recipe_has_is_refused(more: str, pool: RankPool) -> None:
    comparison = judged("RIGHT", pool, f"{LINE} {more}")
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert comparison.limits == "steps=1 loss=token-mean"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("MISSING", "has no attribute 'MISSING'; near: RAISES, WITH_RECIPE, RECIPE"),
        ("RIGHT", "RIGHT lacks 'run_plain'; name a Recipe, or a function below @step(recipe)"),
        ("Recipe", "Recipe is a class; name an instance of it"),
    ],
)
def test_a_name_that_is_no_recipe_is_refused_before_any_case_runs(
    name: str, why: str, pool: RankPool
) -> None:
    with pytest.raises(UnknownCandidate, match=rf"^against=.*{FILE.name}:{name}: ") as refused:
        judged("RIGHT", pool, against=f"{FILE}:{name}")
    assert str(refused.value).endswith(why)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "check {file}:RIGHT --against neither",
            "--against=neither: use plain, self, path/to/file.py:RECIPE or package.module:RECIPE",
        ),
        ("check {file}:RIGHT --against no.py:x", "--against=no.py:x: there is no file no.py"),
        (
            "golden verify --against no.py:x",
            "--against=no.py:x: there is no file no.py",
        ),
        (
            "mutants --against {file}:RECIPE",
            "--against={file}:RECIPE: mutants are of the harness's own model; use plain or self",
        ),
        (
            "check {file}:RIGHT --against {file}:RECIPE --loss row-mean",
            OTHER_LOSS,
        ),
    ],
)
def test_a_reference_that_cannot_be_used_is_refused_before_a_rank_starts(
    words: str, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.ranks.pool.RankPool.__init__", None)
    assert main(words.format(file=FILE).split()) == USAGE
    assert capsys.readouterr().err.strip() == f"harness: {why.format(file=FILE)}"


@pytest.fixture
def failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Any, Path]:
    """Return the document of a `check` that fails, and its bundle, in the current folder."""
    monkeypatch.chdir(tmp_path)
    words = "--cases 4 --sp 2 --dp 1 --dtype fp64 --no-diagnose --json"
    assert main(["check", f"{FILE}:WRONG_METRIC", *COMMAND, *words.split()]) == DIVERGED
    (bundle,) = Path(".harness/failures").iterdir()
    return json.loads(capsys.readouterr().out), bundle


@pytest.mark.slow
def test_documents_bundles_and_the_command_to_replay_keep_the_recipe(
    failed: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    document, bundle = failed
    (failure,) = document["candidates"][f"{FILE}:WRONG_METRIC"]["failures"]
    assert document["campaign"]["against"] == failure["against"] == RECIPE
    assert failure["replay"].endswith(f"--against {RECIPE}")
    assert read_bundle(bundle).origin.against == RECIPE
    again = ["repro", str(bundle), "--candidate", f"{FILE}:WRONG_METRIC"]
    assert main(again) == USAGE
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(
            f"it is compared with {RECIPE}, whose code is not run unasked; if you trust it, add "
            f"--against {RECIPE}"
        )
    )
    assert main([*again, *COMMAND]) == DIVERGED
    assert "  same    as in the bundle" in capsys.readouterr().out


@pytest.mark.slow
def test_a_golden_of_a_recipe_is_verified_by_who_names_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", str(tmp_path / "mine"))
    named = ("--candidate", f"{FILE}:RIGHT", *COMMAND)
    words = ["golden", "add", "two-rows", LINE, "--comment", "It is mine.", *store]
    assert main([*words, *named]) == PASSED
    verify = ["golden", "verify", *store, "--ranks", "2"]
    assert main([*verify, *named, "--json"]) == PASSED
    *_, printed = capsys.readouterr().out.partition("{")
    document = json.loads("{" + printed)
    # At sp 1 and 2, and in two replicas, which it does not support.
    assert document["against"] == {RECIPE: 3}
    assert document["unconfirmed"] == {}
    assert main([*verify, *named[:2]]) == USAGE
    assert f"if you trust it, add --against {RECIPE}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "status"),
    [(f"{FILE}:WRONG_METRIC", DIVERGED), (f"{PLANTED / 'styles.py'}:with_lora", PASSED)],
)
def test_a_golden_has_the_metrics_and_knows_what_is_frozen(
    candidate: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--candidate", candidate, *(COMMAND if str(FILE) in candidate else ())]
    store = ["--store", str(tmp_path / "mine")]
    words = ["golden", "add", "it", LINE, "--comment", "It is mine."]
    assert main([*words, *store, *named]) == PASSED
    verify = ["golden", "verify", *store, "--ranks", "2", *named, "--sp", "2"]
    assert main(verify) == status, capsys.readouterr().out
    assert "unconfirmed" not in capsys.readouterr().out


def test_a_golden_without_the_metrics_is_still_confirmed(pool: RankPool) -> None:
    job = Job(parse(LINE), locate(f"{FILE}:RIGHT"), RECIPE)
    now = own_reference(job, pool)
    assert isinstance(now, Trace)
    assert "metric.twice" in now
    older = now.only([key for key in now if is_required(key)])
    vector = Vector("it", job.case, "It is mine.", (), (), "")
    golden = make(vector, older, job.candidate.name, RECIPE, {}, "")
    assert list(find_unconfirmed({"it": golden}, Session(pool))) == []
    older.put("metric.thrice", now["metric.twice"])
    ((_, why),) = find_unconfirmed({"it": golden}, Session(pool))
    assert "metric.thrice" in why
