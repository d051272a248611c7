"""Keys that the reference does not have are reported, and their copies must agree."""

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
UNKNOWN_KEYS = {"metric.kl", "metric.of-rank-1", "entropy"}


def test_exactly_the_keys_that_the_reference_does_not_have_are_reported(
    harness_pool: RankPool,
) -> None:
    for judge in (evaluate, evaluate_traced):
        comparison = judge(CASE, f"{FILE}:METRICS", harness_pool)
        assert comparison.verdict.passed, explain(comparison)
        assert set(comparison.measured.uncompared) == UNKNOWN_KEYS
        assert re.search(
            "  extra   emitted, and compared with nothing: .*metric.kl", explain(comparison)
        )
        assert evaluate(CASE, "native-local", harness_pool).measured.uncompared == ()


def test_copies_of_an_unknown_key_that_differ_are_a_misfit(harness_pool: RankPool) -> None:
    comparison = evaluate(CASE, f"{FILE}:OF_ITS_RANK", harness_pool)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.inquiry.called == "replica-split"
    (misfit,) = comparison.measured.misfits
    assert (misfit.kind, misfit.key, misfit.ranks) == (MisfitKind.SPLIT, "metric.kl", (1,))
    assert "metric.kl: rank 1 holds another copy than rank 0" in explain(comparison)


@pytest.mark.parametrize(
    ("name", "key"),
    [("OF_SP", "metric.kl"), ("OF_THE_LAST_RANK", "metric.tokens"), ("ROLLED", "metric.logp")],
)
def test_against_itself_a_wrong_metric_diverges_whichever_rank_emits_it(
    name: str, key: str, harness_pool: RankPool
) -> None:
    comparison = verdict_only(CASE, f"{FILE}:{name}", harness_pool, against=ITSELF)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.measured.first is not None
    assert comparison.measured.first.key == key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["METRICS", "LOGP", "OF_SOME_TOKENS"])
@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
def test_against_itself_correct_metrics_pass(
    name: str, dtype: Dtype, harness_pool: RankPool
) -> None:
    for judge in (evaluate, evaluate_traced):
        # Two micro-batches, because a metric at the end of a row depends on the row next to it.
        case = replace(CASE, dtype=dtype, micro_batches=2)
        comparison = judge(case, f"{FILE}:{name}", harness_pool, against=ITSELF)
        assert comparison.verdict.passed, explain(comparison)


def test_against_itself_a_metric_that_is_emitted_at_sp_1_only_is_a_fault(
    harness_pool: RankPool,
) -> None:
    for judge in (evaluate, evaluate_traced):
        comparison = judge(CASE, f"{FILE}:AT_SP_1_ALONE", harness_pool, against=ITSELF)
        assert comparison.fault is not None
        assert comparison.fault.kind is Kind.VACUOUS
        summary = "metric.kl is emitted at sp 1, and by no rank at sp 2"
        assert summary in comparison.fault.summary


def test_against_itself_a_wide_metric_is_compared_only_in_a_traced_run(
    harness_pool: RankPool,
) -> None:
    comparison = evaluate(CASE, f"{FILE}:WIDE", harness_pool, against=ITSELF)
    assert comparison.verdict.passed
    assert "metric.wide" in comparison.measured.uncompared
    assert "  extra   emitted, and not compared: " in explain(comparison)
    traced = evaluate_traced(CASE, f"{FILE}:WIDE", harness_pool, against=ITSELF)
    assert traced.verdict is Verdict.DIVERGED
    assert traced.measured.uncompared == ()


@pytest.mark.parametrize("key", ["labels", "ids", "weight"])
def test_inputs_of_the_step_are_compared_in_every_run(key: str, harness_pool: RankPool) -> None:
    comparison = verdict_only(CASE, f"{FILE}:{key.upper()}", harness_pool)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.measured.first is not None
    assert comparison.measured.first.key == key


@pytest.mark.parametrize("loss", get_args(LossContract))
def test_inputs_that_follow_from_the_case_are_those_of_a_traced_run(loss: LossContract) -> None:
    case = replace(CASE, rows=2 * CASE.rows, loss=loss, micro_batches=2, dp=2)
    extended = with_what_is_given(case, reference(case, torch.float64))
    traced = reference(case, torch.float64, traced=True)
    assert [key for key in traced if key in extended] == list(extended)
    for key in extended:
        np.testing.assert_allclose(extended[key].values, traced[key].values, rtol=1e-14)
        np.testing.assert_array_equal(extended[key].tokens, traced[key].tokens)


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_a_campaign_reports_keys_without_a_reference_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["check", "--candidate", f"{FILE}:METRICS", "--cases=3", "--sp=2", "--ranks=2"]
    main(command)
    assert capsys.readouterr().out.count("compared with nothing: ") == 1
    main([*command, "--json"])
    (tally,) = json.loads(capsys.readouterr().out)["candidates"].values()
    assert set(tally["uncompared"]) == UNKNOWN_KEYS


def test_every_key_of_plain_training_is_either_required_or_known_as_optional() -> None:
    for key in reference(CASE, torch.float64, traced=True):
        assert is_required(key) != is_of_plain_training(key)
    assert not is_of_plain_training("layers.0.router")
