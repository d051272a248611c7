"""Names of a candidate that is compared with itself, so that no experiments are run."""

from dataclasses import replace

import pytest
import torch

from harness.against import ITSELF
from harness.candidates.own.mutants import BANK
from harness.candidates.required import only_required
from harness.case import Row, parse
from harness.compare import Comparison, Look, Verdict, compare
from harness.diagnosis import name_divergence
from harness.failure.confirm import confirm
from harness.judge import Session
from harness.ranks.pool import RankPool
from harness.reference import reference
from harness.report import explain
from properties.helpers.judging import evaluate
from properties.helpers.places import PLANTED
from properties.meta.diagnosis.test_anomalies import GRADIENTS, shown, times

FILE, METRICS = (f"{PLANTED / name}:" for name in ("sinks.py", "metrics.py"))
CASE = parse("case/1 rows=7:0111111,3:111 heads=4/2 layers=1 vocab=16 sp=2 dp=1 seed=3")


def judged(name: str, pool: RankPool) -> Comparison:
    seen = evaluate(CASE, name, pool, against=ITSELF)
    assert seen.verdict is Verdict.DIVERGED, explain(seen)
    return seen


def test_a_right_step_with_sinks_passes(harness_pool: RankPool) -> None:
    seen = evaluate(CASE, f"{FILE}SINKS", harness_pool, against=ITSELF)
    assert seen.verdict.passed, explain(seen)


@pytest.mark.parametrize("name", ["NOT_CUT", "NOT_CUT_QUIET"])
def test_sinks_that_are_not_cut_are_named_by_the_heads_that_learn(
    name: str, harness_pool: RankPool
) -> None:
    seen = judged(f"{FILE}{name}", harness_pool)
    assert seen.inquiry.called == "heads-uncut"
    assert "the first 2 learn" in explain(seen)


@pytest.mark.parametrize("name", ["ATTENTION_OFF", "ATTENTION_OFF_QUIET"])
def test_a_small_error_in_fp64_is_not_called_low_precision(
    name: str, harness_pool: RankPool
) -> None:
    seen = judged(f"{FILE}{name}", harness_pool)
    assert seen.inquiry.called == "unclassified"
    assert "whether a shorter format made that, this case does not tell" in explain(seen)


@pytest.mark.parametrize("key", ["B73", "B78"])
def test_a_mean_over_each_shard_is_found_from_the_loss(key: str, harness_pool: RankPool) -> None:
    seen = judged(only_required(f"mutants.{key}"), harness_pool)
    assert seen.measured.first is not None
    assert seen.measured.first.key == "loss"
    assert seen.inquiry.called == BANK[key].anomaly == "denominator-per-rank"
    assert "losses of tokens are right; the loss is " in explain(seen)


def test_a_wrong_loss_with_wrong_gradients_is_called_wrong_weights() -> None:
    # This oracle has no weights of tokens.
    oracle = reference(CASE, torch.float64)
    changes = {"loss": times(1.1), GRADIENTS[0]: times(0.5)}
    assembly = shown(CASE, changes, only=("nll", "loss"))
    seen = compare(CASE, "tampered", oracle, [oracle], assembly, of_our_model=False)
    (root,) = name_divergence(seen, oracle, assembly.trace)
    assert root.name == "weights-wrong"
    assert "and 1 of 12 gradients are wrong" in root.why


def test_the_reason_lists_what_to_emit_if_nothing_before_a_wrong_loss_is_emitted(
    harness_pool: RankPool,
) -> None:
    traced = reference(CASE, torch.float64, traced=True)
    for only, description in (
        (
            ("nll", "loss"),
            "nothing before it was emitted; emit ids, positions, labels, embed",
        ),
        (("embed", "nll", "loss"), "embed before it is right; emit layers.0.attn.q, layers.0"),
    ):
        assembly = shown(CASE, {"nll": times(3)}, only=only)
        seen = compare(CASE, "tampered", traced, [traced], assembly)
        (root, *_) = name_divergence(seen, traced, assembly.trace)
        assert root.why.startswith(f"nll is wrong, and {description}")
    seen = judged(only_required("mutants.B29"), harness_pool)
    text = explain(seen)
    assert "nothing before it was emitted; emit labels, positions, layers.0.attn.q" in text
    assert "and all else that the step is given by token to see further" in text


@pytest.mark.parametrize(("name", "end"), [("ROLLED", "last"), ("ROLLED_BACK", "first")])
def test_a_metric_that_is_shifted_after_the_cut_is_named(
    name: str, end: str, harness_pool: RankPool
) -> None:
    seen = judged(f"{METRICS}{name}", harness_pool)
    assert seen.inquiry.called == "shifted-after-cut"
    why = f"1 of 6 tokens have a wrong metric.logp, each the {end} of a shard in its row"
    assert why in explain(seen)
    assert "metric.logp differs" not in explain(seen)


def test_values_that_are_wrong_elsewhere_too_are_not_called_shifted_after_the_cut(
    harness_pool: RankPool,
) -> None:
    assert judged(f"{METRICS}SHIFTED_TWICE", harness_pool).inquiry.called == "unclassified"


@pytest.mark.parametrize(
    ("name", "metric"), [("BALANCE", "metric.balance differs; "), ("QUIET_BALANCE", "")]
)
def test_the_reason_mentions_a_wrong_term_beside_the_loss(
    name: str, metric: str, harness_pool: RankPool
) -> None:
    seen = judged(f"{METRICS}{name}", harness_pool)
    beside = "nll and loss are right, so what is wrong is a term beside them, or backward"
    assert f"gradients differ (not proportional); {metric}{beside}" in explain(seen)
    # Without targets all gradients come from that term, and are wrong by one factor.
    case = replace(CASE, rows=tuple(Row("0" * len(row)) for row in CASE.rows))
    alone = evaluate(case, f"{METRICS}{name}", harness_pool, against=ITSELF)
    assert alone.inquiry.called == seen.inquiry.called == "gradient-partial"


@pytest.mark.slow
def test_against_itself_a_smaller_case_gets_the_name_that_its_replay_gives(
    harness_pool: RankPool,
) -> None:
    failure = judged(f"{METRICS}BALANCE", harness_pool)
    small = confirm(CASE, failure.named(Look("replica-split", "")), Session(harness_pool))
    assert small is not None
    assert [look.name for look in small.inquiry.looks] == ["gradient-partial"]
