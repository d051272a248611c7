"""How far a step may stray where plain training of its recipe is exact, or nearly so, by luck."""

from dataclasses import replace

import numpy as np
import pytest

from harness.case import Dtype, parse
from harness.compare import Verdict, compare
from harness.judge.recipe_reference import PlainRun, plain_runs, recipe_references
from harness.trace import Assembly, Entry, Fault, Trace

CASE = parse("case/1 rows=3:111 heads=2/2 layers=1 vocab=8 sp=1 dim=2 dtype=fp32")
KL, ROUNDING = 1.5e-3, 3.8e-8
# How far fused attention errs in a row with padding.
FUSED = 1e-6
WEIGHTS = np.linspace(0.5, 1.5, 12)


def outcome(kl: float, dtype: type = np.float64) -> Assembly:
    trace = Trace()
    for key, values in {"loss": 1.0, "grad.w": WEIGHTS, "metric.kl": kl}.items():
        trace.put(key, Entry(np.asarray(values, dtype)))
    return Assembly(trace)


def ran(run: PlainRun) -> Assembly:
    """Run a recipe whose KL has few values in fp32, of which one is right in this case."""
    # Weights that are moved have another KL.
    exact = KL + 1e-5 * run.case.nudge / 2.0**-24
    if run.is_exact:
        return outcome(exact)
    return outcome(exact + ROUNDING if run.is_elsewhere else KL, np.float32)


def compared(oracle: Trace, baselines: list[Trace], step: Assembly) -> Verdict:
    against = CASE, "step", oracle, baselines, step
    return compare(*against, of_our_model=False, reference="its recipe").verdict


@pytest.mark.parametrize(("again", "verdict"), [(False, Verdict.DIVERGED), (True, Verdict.WITHIN)])
def test_a_step_is_not_blamed_for_a_rounding_that_plain_training_lacks_by_luck(
    again: bool, verdict: Verdict
) -> None:
    runs = plain_runs(CASE, again=again)
    references = recipe_references(runs, [ran(run) for run in runs], "plain")
    assert isinstance(references, list)
    oracle, *baselines = references
    step = outcome(KL + ROUNDING)
    assert compared(oracle, baselines, step) is verdict
    # Another KL, as far away as that of moved weights, is still found.
    wrong = outcome(KL + 1e-5)
    assert compared(oracle, baselines, wrong) is Verdict.DIVERGED


def test_in_fp32_a_step_may_err_as_plain_training_with_fused_attention_does() -> None:
    def with_kernels(run: PlainRun) -> Assembly:
        error = 0.0 if run.case.kernel == CASE.kernel else FUSED
        return outcome(KL + error, np.float64 if run.is_exact else np.float32)

    runs = plain_runs(CASE, again=True)
    references = recipe_references(runs, [with_kernels(run) for run in runs], "plain")
    assert isinstance(references, list)
    oracle, *baselines = references
    assert compared(oracle, baselines, outcome(KL + FUSED)) is Verdict.WITHIN
    assert compared(oracle, baselines, outcome(KL + 100 * FUSED)) is Verdict.DIVERGED
    formula = [with_kernels(run).trace for run in runs if run.case.kernel == CASE.kernel]
    assert compared(oracle, formula, outcome(KL + FUSED)) is Verdict.DIVERGED


@pytest.mark.parametrize("dtype", ["fp64", "bf16", "fp16"])
def test_in_other_dtypes_the_recipe_keeps_its_kernel(dtype: Dtype) -> None:
    runs = plain_runs(replace(CASE, dtype=dtype), again=True)
    assert {run.case.kernel for run in runs} == {CASE.kernel}


def test_what_is_infinite_elsewhere_is_no_error() -> None:
    runs = plain_runs(CASE, again=True)
    outcomes = [
        outcome(np.inf)
        if run.is_elsewhere
        else outcome(KL, np.float64 if run.is_exact else np.float32)
        for run in runs
    ]
    references = recipe_references(runs, outcomes, "plain")
    assert isinstance(references, list)
    assert all(float(trace["metric.kl"].values) == pytest.approx(KL) for trace in references)


def test_a_module_that_shows_in_some_runs_only_is_no_doubt_about_the_recipe() -> None:
    def with_module(run: PlainRun, value: float) -> Assembly:
        got = ran(run)
        if run.variant != "wider":
            got.trace.put("norm", Entry(np.full(3, value), np.arange(3)))
        return got

    runs = plain_runs(replace(CASE, dtype="fp64"), again=True)
    moved = [run for run in runs if run.case.nudge == CASE.nudge]
    references = recipe_references(moved, [with_module(run, 1.0) for run in moved], "plain")
    assert isinstance(references, list)
    others = [with_module(run, float(number)) for number, run in enumerate(moved)]
    fault = recipe_references(moved, others, "plain")
    assert isinstance(fault, Fault)
    assert "norm" in fault.summary


@pytest.mark.parametrize(
    ("left", "verdict"), [(1.8e-8, Verdict.UNSUPPORTED), (1e-5, Verdict.DIVERGED)]
)
def test_where_all_gradients_cancel_no_step_is_blamed_for_what_is_left_in_a_slice(
    left: float, verdict: Verdict
) -> None:
    def of(rounding: float, first: float, dtype: type) -> Assembly:
        """Return a step on a pair of equal rows, where no gradient but rounding is left."""
        cancelled = outcome(KL, dtype)
        gradient = np.full((4, 3), rounding)
        gradient[0] = first
        cancelled.trace.put("grad.w", Entry(gradient.astype(dtype)))
        return cancelled

    def and_others(assembly: Assembly, rounding: float) -> Assembly:
        """Add a gradient with a rounding left in it, and one with none."""
        for key, value in {"grad.v": rounding, "grad.u": min(rounding, 3e-16)}.items():
            values = np.full(3, value, assembly.trace["grad.w"].values.dtype)
            assembly.trace.put(key, Entry(values))
        return assembly

    oracle = and_others(of(3e-16, 3e-23, np.float64), 3e-16).trace
    # The baseline has a rounding left in one slice, or in another gradient only.
    for baseline in (of(1.7e-7, 7e-10, np.float32), of(0.0, 0.0, np.float32)):
        plain = and_others(baseline, 1.7e-7).trace
        step = and_others(of(1.7e-7, left, np.float32), 1.7e-7)
        assert compared(oracle, [plain], step) is verdict


@pytest.mark.parametrize(
    ("dtype", "gradient", "left", "passes"),
    [
        ("fp64", 0.0, 5e-17, True),
        ("fp64", 0.0, 1e-14, False),
        ("fp64", 1.0, 5e-17, True),
        ("fp64", 1.0, 1e-14, False),
        ("fp32", 0.0, 5e-8, False),
        ("bf16", 0.0, 5e-4, False),
        ("fp32", 1.0, 5e-8, True),
        ("fp32", 1.0, 1e-5, False),
    ],
)
@pytest.mark.parametrize("loss", [0.0, -3e-17])
def test_where_a_loss_cancels_and_gradients_perhaps_a_step_may_leave_a_few_roundings(
    dtype: Dtype, gradient: float, left: float, *, passes: bool, loss: float
) -> None:
    def of(left: float, kind: type) -> Assembly:
        """Return a step whose advantages have a mean of zero, or are all zero in fp64."""
        done = outcome(KL, kind)
        for key in ("loss", "metric.kl"):
            done.trace.put(key, Entry(np.asarray(loss + left, kind)))
        # Below fp64 a gradient of zero is exact, and the loss must be so too.
        rest = left * (1 - gradient) if dtype == "fp64" else 0.0
        done.trace.put("grad.w", Entry((gradient * WEIGHTS + rest).astype(kind)))
        return done

    kind = np.float64 if dtype == "fp64" else np.float32
    oracle = of(0.0, np.float64).trace
    case = replace(CASE, dtype=dtype)
    seen = compare(case, "step", oracle, [of(0.0, kind).trace], of(left, kind), of_our_model=False)
    assert (seen.verdict is not Verdict.DIVERGED) is passes
