"""Plain training on a GPU is asked for its error before a candidate that ran there is blamed.

The GPU is emulated: its fused attention computes fp32 in three passes of TF32, as some GPUs do.
That is accurate enough, and one pass is not. It has not run on a real GPU: see `tf32.py`.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from harness.case import Case, parse
from harness.compare import Verdict
from harness.generation import cases, draw_list
from harness.judge import second_opinion
from harness.rank_program.precision import SHORTCUTS, full_precision
from harness.ranks.pool import RankPool
from harness.reference import padded, reference
from harness.report import explain
from harness.trace import Kind, Trace
from properties.helpers import tf32
from properties.helpers.judging import evaluate_all, verdict_only
from properties.helpers.traces import scaled

# Devices that no machine has. Plain training fails on the last one.
COARSE, GPU, BROKEN = "cuda:96", "cuda:98", "cuda:99"
FILE = Path(tf32.__file__)
# Every token sees only itself, so the gradient of queries is zero but for rounding.
WITHOUT_NEIGHBOURS = (
    "case/1 rows=1:1:left,5:00001,1:1:left heads=4/4 layers=2 vocab=16 sp=4 dim=4 window=1 "
    "micro=2 loss=micro-mean dtype=fp32 seed=675"
)
RIGHT, STRAYS = f"{FILE}:IN_THREE", f"{FILE}:IN_COARSE"
ATTENTION = {GPU: tf32.fused, COARSE: tf32.coarse}
CASE = parse("case/1 rows=5:11111,3:111 sp=2")


@pytest.fixture
def asked_devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Emulate plain training on devices; return a list of the devices on which it was asked."""
    devices = []

    def emulated(
        case: Case, dtype: torch.dtype, *, device: str = "cpu", further_columns: int = 0
    ) -> Trace:
        devices.append(device)
        if device == BROKEN:
            raise torch.OutOfMemoryError("no room\nand much more")
        with (
            patch.object(padded, "fused", ATTENTION[device])
            if device in ATTENTION
            else nullcontext()
        ):
            return reference(case, dtype, further_columns=further_columns)

    monkeypatch.setattr(second_opinion, "reference", emulated)
    # Another test of this process may have had the same case.
    second_opinion.differently_rounded.cache_clear()
    second_opinion._trace_on_device.cache_clear()
    return devices


@pytest.fixture
def pool(harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> RankPool:
    """A pool whose ranks seem to compute on the emulated GPU."""
    monkeypatch.setattr(harness_pool, "computes_on", GPU)
    return harness_pool


@pytest.fixture(scope="module")
def straying_cases(harness_pool: RankPool) -> list[Case]:
    """Three cases in which a correct step strays too far for a CPU; they differ between CPUs."""
    batch = draw_list(cases(max_ranks=4, dtypes=("fp32",)), 30, 0)
    comparisons = [verdict_only(case, STRAYS, harness_pool) for case in batch]
    return [c.case for c in comparisons if c.verdict is Verdict.DIVERGED and c.measured.used < 2][
        :3
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("asked_devices")
def test_a_candidate_may_stray_as_far_as_plain_training_on_its_device(
    straying_cases: list[Case], pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(straying_cases) == 3
    monkeypatch.setattr(pool, "computes_on", COARSE)
    for case in straying_cases:
        comparison = verdict_only(case, STRAYS, pool)
        assert comparison.verdict is Verdict.WITHIN, explain(comparison)
        assert comparison.asked_again


@pytest.mark.usefixtures("asked_devices")
def test_a_zero_gradient_may_have_what_plain_training_has_in_it_on_the_device(
    pool: RankPool,
) -> None:
    comparison = verdict_only(parse(WITHOUT_NEIGHBOURS), RIGHT, pool)
    assert comparison.verdict is Verdict.WITHIN, explain(comparison)


@pytest.mark.slow
@pytest.mark.usefixtures("asked_devices")
def test_a_correct_step_with_three_passes_of_tf32_passes(pool: RankPool) -> None:
    batch = draw_list(cases(max_ranks=4, dtypes=("fp32",)), 25, 0)
    for comparison in evaluate_all(((case, RIGHT) for case in batch), pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.usefixtures("asked_devices")
@pytest.mark.parametrize("candidate", ["IN_ONE", "MULTIPLIES"])
def test_a_step_with_one_pass_of_tf32_diverges_in_every_case_with_targets(
    candidate: str, pool: RankPool
) -> None:
    batch = draw_list(cases(max_ranks=4, dtypes=("fp32",)), 6, 0)
    learning = [case for case in batch if any(row.supervised() for row in case.rows)]
    assert len(learning) > 3
    for case in learning:
        comparison = verdict_only(case, f"{FILE}:{candidate}", pool)
        assert comparison.verdict is Verdict.DIVERGED, explain(comparison)


def test_plain_training_does_not_run_on_a_device_without_a_divergence_or_on_the_cpu(
    pool: RankPool, asked_devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict_only(CASE, "native-local", pool).verdict.passed
    assert asked_devices == []
    monkeypatch.setattr(pool, "computes_on", "cpu")
    assert verdict_only(CASE, "mutants.B14", pool).verdict is Verdict.DIVERGED
    # Twice from weights that are moved by a rounding, and not once more as on a device.
    assert asked_devices == ["cpu", "cpu"]


@pytest.mark.slow
def test_if_plain_training_fails_on_a_device_the_divergence_stands_and_mentions_it(
    straying_cases: list[Case],
    pool: RankPool,
    asked_devices: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "computes_on", BROKEN)
    comparison = verdict_only(straying_cases[0], STRAYS, pool)
    assert comparison.verdict is Verdict.DIVERGED
    assert asked_devices.count(BROKEN) == 2
    assert (
        "  but     plain training on cuda:99 could not be asked for its own error (kernel=sdpa): "
        "OutOfMemoryError: no room\n"
    ) in explain(comparison)


def test_a_device_whose_fp64_differs_from_the_cpu_is_a_fault_of_the_reference(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        second_opinion,
        "reference",
        lambda case, dtype, **_: scaled(reference(case, dtype), 1 + 1e-6),
    )
    fault = verdict_only(CASE, "mutants.B14", pool).fault
    assert fault is not None
    assert fault.kind is Kind.REFERENCE
    start = f"the padded reference and plain training on {GPU} disagree: "
    assert fault.summary.startswith(start)


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_device_that_strays_by_many_budgets_is_a_fault_of_the_reference(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    def strayed(
        case: Case, dtype: torch.dtype, *, device: str = "cpu", further_columns: int = 0
    ) -> Trace:
        trace = reference(case, dtype, further_columns=further_columns)
        return trace if device == "cpu" else scaled(trace, factor)

    monkeypatch.setattr(second_opinion, "reference", strayed)
    # A device of its own, because traces are cached by device.
    monkeypatch.setattr(pool, "computes_on", f"cuda:{factor}")
    fault = verdict_only(replace(CASE, dtype="fp32"), "mutants.B14", pool).fault
    assert fault is not None
    assert fault.kind is Kind.REFERENCE
    assert f"plain training on cuda:{factor} is off by " in fault.summary


def test_plain_training_on_a_device_turns_precision_shortcuts_off_and_then_restores_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switches = []

    def record_switches(*_: object, **__: object) -> Trace:
        switches.append([getattr(*shortcut) for shortcut in SHORTCUTS])
        return Trace()

    monkeypatch.setattr(second_opinion, "reference", record_switches)
    with full_precision():
        for shortcut in SHORTCUTS:
            setattr(*shortcut, True)
        _, missing = second_opinion.traces_on_device(CASE, "cuda:97")
        assert missing == ""
        assert switches == [[False] * len(SHORTCUTS)]
        assert all(getattr(*shortcut) for shortcut in SHORTCUTS)
