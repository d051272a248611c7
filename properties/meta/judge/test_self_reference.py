"""Compared with its own step at sp 1, a correct step passes, and faults of sharing are found."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given

from harness.against import IS_KEPT, ITSELF, NAMES
from harness.campaign.case_source import NONE_OF
from harness.candidates.own.mutants import BANK
from harness.case import Case, Dtype, LossContract, parse
from harness.cli import main
from harness.compare import Verdict
from harness.failure.bundle import read_bundle
from harness.generation import cases, draw_list
from harness.judge import self_reference
from harness.judge.session import AHEAD
from harness.ranks.pool import RankPool
from harness.reference import reference
from harness.report import explain
from harness.trace import Kind
from properties.helpers.judging import evaluate
from properties.helpers.places import PLANTED
from properties.meta.compare.test_least_traffic import VACUOUS

ALONE, GRPO = PLANTED / "alone.py", PLANTED / "grpo.py"
CASE = parse("case/1 rows=8:11111111,5:10111 heads=4/2 layers=2 sp=2 dp=2 micro=1")
# Mutants with faults of different kinds: in labels, attention, rows and gradients.
MUTANTS = ("B26", "B30", "B61", "B101", "B105", "B119")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


@given(cases(losses=("token-mean", "micro-mean", "row-mean"), max_steps=1))
def test_the_contract_loss_is_the_loss_of_plain_training(case: Case) -> None:
    oracle = reference(case, torch.float64)
    assert self_reference.contract_loss(case, oracle["nll"]) == pytest.approx(
        float(oracle["loss"].values)
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "candidate",
    ["native-gather", "benign.uneven", pytest.param("native-local", marks=pytest.mark.long)],
)
def test_a_correct_step_passes_against_itself(candidate: str, count: int, pool: RankPool) -> None:
    drawn = draw_list(cases(sps=(2, 4), max_ranks=4, dtypes=("fp64", "fp32", "bf16")), count, 0)
    for case in (CASE, *drawn):
        comparison = evaluate(case, candidate, pool, against=ITSELF)
        assert comparison.verdict.passed, explain(comparison)
        assert comparison.measured.elements > 0


@pytest.mark.slow
@pytest.mark.parametrize("key", MUTANTS)
def test_a_fault_of_sharing_a_sequence_is_found_and_named(key: str, pool: RankPool) -> None:
    for case in draw_list(cases(sps=(2, 4), dps=(1,), max_ranks=4), 40, 0):
        comparison = evaluate(case, f"mutants.{key}", pool, against=ITSELF)
        if comparison.verdict.failed:
            assert comparison.verdict is Verdict.DIVERGED
            assert comparison.inquiry.called == BANK[key].anomaly
            against = f"  against {NAMES[ITSELF]}, which may be wrong as well"
            assert against in explain(comparison).splitlines()
            assert explain(comparison).splitlines()[-1].endswith(" --against self")
            return
    pytest.fail(f"{key} was not found")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict", "message"),
    [
        ("REFUSES", Verdict.UNSUPPORTED, "one micro-batch, with which it is compared: two ranks"),
        ("RAISES", Verdict.FAULT, "raised ValueError: no peers"),
        ("TWICE_THE_LOSS", Verdict.FAULT, "is not the token-mean of its nll, which is"),
        # A fault that sp 1 has too does not show.
        ("TWICE_EVERYTHING", Verdict.WITHIN, ""),
    ],
)
def test_a_step_that_cannot_be_its_own_reference_is_reported_with_the_reason(
    name: str, verdict: Verdict, message: str, pool: RankPool
) -> None:
    comparison = evaluate(CASE, f"{ALONE}:{name}", pool, against=ITSELF)
    assert comparison.verdict is verdict
    assert message in (comparison.fault.summary if comparison.fault else comparison.reason)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("loss", get_args(LossContract))
@pytest.mark.parametrize("name", ["DIVIDED_BY_REPLICAS", "TIMES_MICRO_BATCHES"])
def test_a_factor_of_replicas_or_micro_batches_is_found(
    name: str, loss: LossContract, pool: RankPool
) -> None:
    case = replace(CASE, rows=2 * CASE.rows, micro_batches=2, loss=loss)
    assert evaluate(case, "native-local", pool, against=ITSELF).verdict.passed
    comparison = evaluate(case, f"{ALONE}:{name}", pool, against=ITSELF)
    assert comparison.verdict is Verdict.DIVERGED
    parts = "the mean of 4 runs of one" if loss == "micro-mean" else "dp 1 and one"
    assert f"own step at sp 1, {parts} micro-batch" in explain(comparison)


@pytest.mark.slow
def test_a_step_that_draws_data_by_the_number_of_a_row_is_reported(pool: RankPool) -> None:
    case = replace(CASE, rows=2 * CASE.rows, micro_batches=2, loss="micro-mean")
    for drawn_by_row in (case, replace(case, dtype="bf16")):
        comparison = evaluate(drawn_by_row, f"{GRPO}:GRPO", pool, against=ITSELF)
        assert comparison.verdict.passed, explain(comparison)
    assert evaluate(case, f"{GRPO}:BY_NUMBER", pool, against=ITSELF).verdict is Verdict.DIVERGED
    # In bf16 its further baselines would stray so far that every difference would be rounding.
    comparison = evaluate(replace(case, dtype="bf16"), f"{GRPO}:BY_NUMBER", pool, against=ITSELF)
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.REFERENCE
    assert "draw what a row needs with case.draw(row, name)" in comparison.fault.summary


@pytest.mark.slow
def test_a_fp64_case_is_unsupported_if_the_step_rounds_as_fp32_at_sp_1_too(
    pool: RankPool,
) -> None:
    case = replace(CASE, rows=3 * CASE.rows, dp=1, micro_batches=3, loss="micro-mean")
    comparison = evaluate(case, f"{ALONE}:ROUNDS_SUMS", pool, against=ITSELF)
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert "only as exact as fp32 is: ask for --dtype fp32" in comparison.reason
    assert f"--candidate {ALONE}:ROUNDS_SUMS --against self" in explain(comparison)
    wrong = evaluate(case, f"{ALONE}:ROUNDS_SUMS_WRONG", pool, against=ITSELF)
    assert wrong.verdict is Verdict.DIVERGED


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, pytest.param(400, marks=pytest.mark.long)])
def test_a_correct_step_of_grpo_is_not_blamed_in_bf16(count: int, pool: RankPool) -> None:
    drawn = draw_list(cases(sps=(2, 4), max_ranks=4, dtypes=("bf16",)), count, 0)
    comparisons = [evaluate(case, f"{GRPO}:GRPO", pool, against=ITSELF) for case in drawn]
    for comparison in comparisons:
        assert not comparison.verdict.failed, explain(comparison)
        assert "plain training" not in explain(comparison)
    assert sum(comparison.verdict.passed for comparison in comparisons) > count / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sp"),
    [("FEW", 2), ("FEW", 4), ("CLEARS_GRADIENTS", 2), ("ASKS_FOR_GRADIENTS", 2)],
)
def test_a_gradient_that_is_computed_and_not_emitted_is_a_fault(
    name: str, sp: int, pool: RankPool
) -> None:
    comparison = evaluate(replace(CASE, sp=sp, dp=1), f"{ALONE}:{name}", pool, against=ITSELF)
    assert comparison.fault is not None
    summary = comparison.fault.summary
    assert comparison.fault.kind is Kind.VACUOUS
    assert "20640 elements got a gradient that is not zero, such as head, layers.0." in summary
    assert "were emitted: emit grad.<name> for each of them" in summary


def test_a_gradient_emitted_under_two_names_does_not_replace_a_missing_one(
    pool: RankPool,
) -> None:
    case = replace(CASE, tied=True, steps=1)
    comparison = evaluate(case, f"{ALONE}:EMITS_TWICE", pool, against=ITSELF)
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.VACUOUS
    assert "layers.0.attn_norm" in comparison.fault.summary


def test_a_fused_copy_of_emitted_gradients_does_not_replace_missing_ones(pool: RankPool) -> None:
    comparison = evaluate(CASE, f"{ALONE}:FUSED_FOR_NORMS", pool, against=ITSELF)
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.VACUOUS
    assert "such as layers.0.attn_norm, layers.0.mlp_norm" in comparison.fault.summary


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_gradients_may_be_emitted_in_fused_form_only(dtype: Dtype, pool: RankPool) -> None:
    case = replace(CASE, dtype=dtype)
    comparison = evaluate(case, f"{ALONE}:FUSED", pool, against=ITSELF)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
def test_gradients_of_a_copy_of_the_model_need_not_be_emitted(
    dtype: Dtype, pool: RankPool
) -> None:
    case = replace(CASE, dtype=dtype, micro_batches=1)
    comparison = evaluate(case, f"{ALONE}:KEEPS_A_COPY", pool, against=ITSELF)
    assert comparison.fault is None, explain(comparison)


@pytest.mark.slow
def test_gradients_of_a_model_kept_from_an_earlier_case_do_not_count(pool: RankPool) -> None:
    for case in (CASE, replace(CASE, seed=1), replace(CASE, layers=1), CASE):
        comparison = evaluate(case, f"{ALONE}:KEEPS_ITS_MODEL", pool, against=ITSELF)
        assert comparison.verdict.passed, explain(comparison)


def test_an_explanation_counts_compared_gradients_and_lists_those_that_are_zero(
    pool: RankPool,
) -> None:
    correct, with_zeros = (
        explain(evaluate(CASE, name, pool, against=ITSELF))
        for name in ("native-local", f"{ALONE}:ZERO_KEYS")
    )
    assert " tensors, 21 of them gradients; " in correct
    assert "  zero " not in correct
    assert "  zero    grad.layers.0.k, grad.layers.1.k: everywhere, also at sp 1" in with_zeros


def test_a_micro_mean_over_two_steps_keeps_replicas_and_micro_batches_and_explains_why(
    pool: RankPool,
) -> None:
    case = replace(CASE, loss="micro-mean", steps=2)
    comparison = evaluate(case, "native-local", pool, against=ITSELF)
    assert comparison.verdict.passed, explain(comparison)
    assert "step at sp 1 with dp=2 and micro=1 as here, because" in explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        # The oracle runs in fp64 nevertheless.
        ("IN_BF16", ""),
        (
            "IN_TWO_MICRO_BATCHES",
            "one micro-batch, with which it is compared: its limits are micro=2",
        ),
    ],
)
def test_limits_on_a_dtype_do_not_apply_to_the_oracle_and_other_limits_do(
    name: str, reason: str, pool: RankPool
) -> None:
    case = replace(CASE, rows=2 * CASE.rows, micro_batches=2, dtype="bf16")
    comparison = evaluate(case, f"{ALONE}:{name}", pool, against=ITSELF)
    assert reason in comparison.reason
    assert comparison.verdict is Verdict.UNSUPPORTED if reason else comparison.verdict.passed
    # The case itself is within the limits.
    assert comparison.limits == ""
    assert (
        evaluate(replace(case, dtype="fp64"), f"{ALONE}:IN_BF16", pool, against=ITSELF).limits
        == "dtype=bf16"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passes"), [("OVER_ALL", True), ("OVER_ALL_WRONG", False)])
def test_a_step_over_all_ranks_has_as_many_as_it_needs_at_sp_1_too(
    name: str, passes: bool, pool: RankPool
) -> None:
    for case in (CASE, replace(CASE, dtype="fp32"), replace(CASE, dp=1)):
        comparison = evaluate(case, f"{ALONE}:{name}", pool, against=ITSELF)
        assert comparison.verdict.passed is passes, explain(comparison)
        assert comparison.verdict is not Verdict.UNSUPPORTED


@pytest.mark.slow
def test_a_campaign_of_unsupported_cases_only_ends_early_and_prints_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    candidate = f"{ALONE}:IN_TWO_MICRO_BATCHES"
    command = ["check", "--against=self", f"--candidate={candidate}", "--sp=2", "--dp=1", "--json"]
    assert main([*command, "--cases=400", "--loss=token-mean", "--set=micro=2"]) == 3
    printed = capsys.readouterr()
    (tally,) = json.loads(printed.out)["candidates"].values()
    assert NONE_OF <= tally["verdicts"]["UNSUPPORTED"] <= NONE_OF + AHEAD
    assert tally["lacking"] == 400
    assert "supports none of 20" in printed.err
    assert "because of 'at sp 1, dp 1 and one micro-batch, with which it is" in printed.err


@pytest.mark.slow
def test_a_campaign_mentions_that_the_reference_keeps_replicas_only_if_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["check", "--against", "self", "--candidate", "native-local", "--cases", "2"]
    command += ["--sp", "2", "--dp", "2", "--dtype", "fp64", "--set", "steps=2"]
    for loss, keeps_replicas in (("micro-mean", True), ("token-mean", False)):
        assert main([*command, "--loss", loss]) == 0
        assert (IS_KEPT in capsys.readouterr().out) is keeps_replicas


def test_a_case_at_sp_1_is_unsupported_against_itself(pool: RankPool) -> None:
    comparison = evaluate(parse("case/1 rows=3:111 sp=1"), "native-local", pool, against=ITSELF)
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert comparison.reason == "sp 1 is what it is compared with"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["COMPUTES_ALL", "ONE_HOLDS_ALL"])
def test_a_step_that_shares_nothing_is_vacuous_against_itself(name: str, pool: RankPool) -> None:
    comparison = evaluate(CASE, f"{VACUOUS}:{name}", pool, against=ITSELF)
    assert comparison.fault
    assert comparison.fault.kind is Kind.VACUOUS


@pytest.mark.slow
def test_a_bundle_stores_the_reference_and_repro_compares_with_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["check", "--against", "self", "--candidate", "mutants.B14", "--cases", "5"]
    assert main([*command, "--sp", "1,2", "--dp", "1", "--dtype", "fp64"]) == 1
    assert "one micro-batch, which may be wrong as well" in capsys.readouterr().out
    (bundle,) = (tmp_path / ".harness" / "failures").iterdir()
    assert read_bundle(bundle).origin.against == "self"
    assert main(["repro", str(bundle)]) == 1
    assert "same" in capsys.readouterr().out
    assert main(["check", "--against", "self", "--sp", "1"]) == 2
    assert "--sp=1: is what --against self compares with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_that_is_wrong_only_the_first_time_diverges(pool: RankPool) -> None:
    case = replace(CASE, dtype="fp32", seed=77)
    comparison = evaluate(case, f"{ALONE}:NOW_AND_THEN", pool, against=ITSELF)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.inquiry.called == "stale-state"
