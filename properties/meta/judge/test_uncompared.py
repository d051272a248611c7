"""Keys that nothing is compared with are told, and copies of them held against each other."""

import json
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from harness.against import ITSELF
from harness.case import Dtype, LossContract, parse
from harness.cli import main
from harness.compare import Verdict
from harness.ranks.pool import RankPool
from harness.reference import reference, with_what_is_given
from harness.report import explain
from harness.trace import Kind, MisfitKind, is_of_plain_training, is_required
from properties.helpers.judging import evaluate, evaluate_traced, verdict_only
from properties.helpers.places import PLANTED

pytest_plugins = ["properties.helpers.own_pool"]

FILE = PLANTED / "metrics.py"
CASE = parse("case/1 rows=5:11111,3:111 heads=4/2 layers=2 sp=2")
TOLD = {"metric.kl", "metric.of-rank-1", "entropy"}


def test_what_nothing_is_compared_with_is_told_and_nothing_else(harness_pool: RankPool) -> None:
    for judge in (evaluate, evaluate_traced):
        seen = judge(CASE, f"{FILE}:METRICS", harness_pool)
        assert seen.verdict.passed, explain(seen)
        assert set(seen.uncompared) == TOLD
        assert re.search(
            "  extra   emitted, and compared with nothing: .*metric.kl", explain(seen)
        )
        assert evaluate(CASE, "native-local", harness_pool).uncompared == ()


def test_copies_that_differ_are_a_misfit_though_nothing_knows_the_key(
    harness_pool: RankPool,
) -> None:
    seen = evaluate(CASE, f"{FILE}:OF_ITS_RANK", harness_pool)
    assert seen.verdict is Verdict.DIVERGED
    assert seen.called == "replica-split"
    (misfit,) = seen.misfits
    assert (misfit.kind, misfit.key, misfit.ranks) == (MisfitKind.SPLIT, "metric.kl", (1,))
    assert "metric.kl: rank 1 holds another copy than rank 0" in explain(seen)


@pytest.mark.parametrize(
    ("name", "key"),
    [("OF_SP", "metric.kl"), ("OF_THE_LAST_RANK", "metric.tokens"), ("ROLLED", "metric.logp")],
)
def test_against_itself_a_metric_is_compared_with_that_at_sp_1_whichever_rank_has_it(
    name: str, key: str, harness_pool: RankPool
) -> None:
    wrong = verdict_only(CASE, f"{FILE}:{name}", harness_pool, against=ITSELF)
    assert wrong.verdict is Verdict.DIVERGED
    assert wrong.first is not None
    assert wrong.first.key == key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["METRICS", "LOGP", "OF_SOME_TOKENS"])
@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
def test_against_itself_right_metrics_pass(
    name: str, dtype: Dtype, harness_pool: RankPool
) -> None:
    for judge in (evaluate, evaluate_traced):
        # What stands at the ends of rows follows from the neighbours that they have.
        case = replace(CASE, dtype=dtype, micro_batches=2)
        right = judge(case, f"{FILE}:{name}", harness_pool, against=ITSELF)
        assert right.verdict.passed, explain(right)


def test_against_itself_a_metric_that_only_sp_1_has_is_a_fault(harness_pool: RankPool) -> None:
    for judge in (evaluate, evaluate_traced):
        seen = judge(CASE, f"{FILE}:AT_SP_1_ALONE", harness_pool, against=ITSELF)
        assert seen.fault is not None
        assert seen.fault.kind is Kind.VACUOUS
        assert "metric.kl is emitted at sp 1, and by no rank at sp 2" in seen.fault.summary


def test_against_itself_what_is_too_wide_for_every_run_is_told(harness_pool: RankPool) -> None:
    seen = evaluate(CASE, f"{FILE}:WIDE", harness_pool, against=ITSELF)
    assert seen.verdict.passed
    assert "metric.wide" in seen.uncompared
    assert "  extra   emitted, and not compared: " in explain(seen)
    traced = evaluate_traced(CASE, f"{FILE}:WIDE", harness_pool, against=ITSELF)
    assert traced.verdict is Verdict.DIVERGED
    assert traced.uncompared == ()


@pytest.mark.parametrize("key", ["labels", "ids", "weight"])
def test_what_a_step_is_given_by_token_is_compared_in_every_run(
    key: str, harness_pool: RankPool
) -> None:
    wrong = verdict_only(CASE, f"{FILE}:{key.upper()}", harness_pool)
    assert wrong.verdict is Verdict.DIVERGED
    assert wrong.first is not None
    assert wrong.first.key == key


@pytest.mark.parametrize("loss", get_args(LossContract))
def test_what_is_given_is_known_without_a_model(loss: LossContract) -> None:
    case = replace(CASE, rows=2 * CASE.rows, loss=loss, micro_batches=2, dp=2)
    known = with_what_is_given(case, reference(case, torch.float64))
    traced = reference(case, torch.float64, traced=True)
    assert [key for key in traced if key in known] == list(known)
    for key in known:
        np.testing.assert_allclose(known[key].values, traced[key].values, rtol=1e-14)
        np.testing.assert_array_equal(known[key].tokens, traced[key].tokens)


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_a_campaign_tells_once_what_was_compared_with_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["check", "--candidate", f"{FILE}:METRICS", "--cases=3", "--sp=2", "--ranks=2"]
    main(words)
    assert capsys.readouterr().out.count("compared with nothing: ") == 1
    main([*words, "--json"])
    (tally,) = json.loads(capsys.readouterr().out)["candidates"].values()
    assert set(tally["uncompared"]) == TOLD


def test_what_plain_training_shows_is_known_by_its_name() -> None:
    for key in reference(CASE, torch.float64, traced=True):
        assert is_required(key) != is_of_plain_training(key)
    assert not is_of_plain_training("layers.0.router")
