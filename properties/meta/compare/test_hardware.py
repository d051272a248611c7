"""Fused attention in three passes of TF32 is right, and in one it is wrong: an emulation.

Some GPUs compute it so in fp32. Nothing here has been run on one: see `tf32.py`.
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
from harness.generation import cases, generate
from harness.judge import second_opinion
from harness.ranks.pool import RankPool
from harness.ranks.precision import SHORTCUTS, kept
from harness.reference import padded, reference
from harness.report import explain
from harness.trace import Kind, Trace
from properties.helpers import tf32
from properties.helpers.judging import evaluate_all, verdict_only
from properties.helpers.traces import scaled

# No machine has so many; the second fails.
COARSE, GPU, BROKEN = "cuda:96", "cuda:98", "cuda:99"
FILE = Path(tf32.__file__)
# Its tokens see nobody but themselves: the gradient of queries is zero, but for rounding.
ALONE = (
    "case/1 rows=1:1:left,5:00001,1:1:left heads=4/4 layers=2 vocab=16 sp=4 dim=4 window=1 "
    "micro=2 loss=micro-mean dtype=fp32 seed=675"
)
RIGHT, STRAYS = f"{FILE}:IN_THREE", f"{FILE}:IN_COARSE"
ATTENTION = {GPU: tf32.fused, COARSE: tf32.coarse}
CASE = parse("case/1 rows=5:11111,3:111 sp=2")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plain training on a GPU that is made up, and the devices on which it was asked."""
    devices = []

    def there(case: Case, dtype: torch.dtype, *, device: str = "cpu") -> Trace:
        devices.append(device)
        if device == BROKEN:
            raise torch.OutOfMemoryError("no room\nand much more")
        with (
            patch.object(padded, "fused", ATTENTION[device])
            if device in ATTENTION
            else nullcontext()
        ):
            return reference(case, dtype)

    monkeypatch.setattr(second_opinion, "reference", there)
    return devices


@pytest.fixture
def pool(harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> RankPool:
    """Ranks that are taken for ranks of that GPU."""
    monkeypatch.setattr(harness_pool, "computes_on", GPU)
    return harness_pool


@pytest.fixture(scope="module")
def straying(harness_pool: RankPool) -> list[Case]:
    """Cases on which a right step strays too far for a CPU: which these are, each CPU decides."""
    batch = generate(cases(max_ranks=4, dtypes=("fp32",)), 20, 0)
    judged = [verdict_only(case, STRAYS, harness_pool) for case in batch]
    return [one.case for one in judged if one.verdict is Verdict.DIVERGED and one.used < 2][:3]


@pytest.mark.slow
@pytest.mark.usefixtures("asked")
def test_what_hardware_costs_plain_training_is_not_held_against_a_candidate(
    straying: list[Case], pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(straying) == 3
    monkeypatch.setattr(pool, "computes_on", COARSE)
    for case in straying:
        found = verdict_only(case, STRAYS, pool)
        assert found.verdict is Verdict.WITHIN, explain(found)
        assert found.asked_again


@pytest.mark.usefixtures("asked")
def test_of_a_gradient_that_is_zero_as_much_may_be_left_as_plain_training_leaves(
    pool: RankPool,
) -> None:
    found = verdict_only(parse(ALONE), RIGHT, pool)
    assert found.verdict is Verdict.WITHIN, explain(found)


@pytest.mark.slow
@pytest.mark.usefixtures("asked")
def test_right_steps_on_such_hardware_are_left_alone(pool: RankPool) -> None:
    batch = generate(cases(max_ranks=4, dtypes=("fp32",)), 25, 0)
    for comparison in evaluate_all(((case, RIGHT) for case in batch), pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("candidate", ["IN_ONE", "MULTIPLIES"])
def test_one_pass_is_found_in_every_case_that_learns(candidate: str, pool: RankPool) -> None:
    batch = generate(cases(max_ranks=4, dtypes=("fp32",)), 6, 0)
    learning = [case for case in batch if any(row.supervised() for row in case.rows)]
    assert len(learning) > 3
    for case in learning:
        comparison = verdict_only(case, f"{FILE}:{candidate}", pool)
        assert comparison.verdict is Verdict.DIVERGED, explain(comparison)


def test_no_device_is_asked_while_nobody_would_be_blamed(
    pool: RankPool, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict_only(CASE, "native-local", pool).verdict.passed
    assert asked == []
    monkeypatch.setattr(pool, "computes_on", "cpu")
    assert verdict_only(CASE, "mutants.B14", pool).verdict is Verdict.DIVERGED
    assert asked == []


@pytest.mark.slow
def test_where_a_device_fails_the_verdict_stands_and_says_so(
    straying: list[Case], pool: RankPool, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "computes_on", BROKEN)
    comparison = verdict_only(straying[0], STRAYS, pool)
    assert comparison.verdict is Verdict.DIVERGED
    assert asked.count(BROKEN) == 2
    assert (
        "  but     plain training on cuda:99 could not be asked for its own error (kernel=sdpa): "
        "OutOfMemoryError: no room\n"
    ) in explain(comparison)


def test_a_device_on_which_fp64_comes_out_otherwise_is_at_fault_itself(
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
    said = f"the padded reference and plain training on {GPU} disagree: "
    assert fault.summary.startswith(said)


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_device_that_strays_far_excuses_nobody(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    def there(case: Case, dtype: torch.dtype, *, device: str = "cpu") -> Trace:
        trace = reference(case, dtype)
        return trace if device == "cpu" else scaled(trace, factor)

    monkeypatch.setattr(second_opinion, "reference", there)
    # Nothing may be remembered of what this device says.
    monkeypatch.setattr(pool, "computes_on", f"cuda:{factor}")
    fault = verdict_only(replace(CASE, dtype="fp32"), "mutants.B14", pool).fault
    assert fault is not None
    assert fault.kind is Kind.REFERENCE
    assert f"plain training on cuda:{factor} is off by " in fault.summary


def test_plain_training_takes_no_shortcut_on_a_device_and_leaves_switches_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def noted(*_: object, **__: object) -> Trace:
        seen.append([getattr(*shortcut) for shortcut in SHORTCUTS])
        return Trace()

    monkeypatch.setattr(second_opinion, "reference", noted)
    with kept():
        for shortcut in SHORTCUTS:
            setattr(*shortcut, True)
        _, missing = second_opinion.traces_on_device(CASE, "cuda:97")
        assert missing == ""
        assert seen == [[False] * len(SHORTCUTS)]
        assert all(getattr(*shortcut) for shortcut in SHORTCUTS)
