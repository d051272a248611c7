"""Wrappers, accumulation, mixed precision and compilers around a step do not change its result.

Every case here has several micro-batches, several layers and rows of different lengths.
"""

from dataclasses import replace
from itertools import cycle, product
from typing import Any

import pytest
import torch

from harness.case import Case, Sync, Wrapper, parse
from harness.compare import Verdict
from harness.plugin import Evaluate
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.trace import Trace
from properties.helpers.asking import DIALECTS, run_all
from properties.helpers.judging import evaluate, evaluate_all, verdict_only
from properties.helpers.places import PLANTED

Switches = dict[str, Any]
FILE = PLANTED / "around.py"
CASE = parse(
    "case/1 rows=5:11011,3:111,4:1111:left,7:1111111 heads=4/2 layers=2 vocab=16 dim=4 micro=2 "
    "sp=2 dp=2"
)
ALONE = replace(CASE, dp=1)
WRAPPERS: tuple[Wrapper, ...] = ("none", "ddp", "fsdp")
SYNCS: tuple[Sync, ...] = ("last", "each")
MESHES: tuple[Switches, ...] = ({"sp": 2, "dp": 2, "checkpoint": True}, {"sp": 4, "dp": 1})
PRECISIONS: tuple[Switches, ...] = (
    {"dtype": "fp64", "tied": True},
    {"dtype": "fp16", "mixed": False},
    {"dtype": "bf16", "mixed": True},
)


def planted_around(name: str) -> str:
    return f"{FILE}:{name}"


def wrapped_cases(wrapper: Wrapper) -> list[Case]:
    """Make cases of two steps under a wrapper, with each pair of the switches but the compiler."""
    return [
        replace(CASE, wrapper=wrapper, sync=sync, steps=2, **precision, **mesh)
        for (sync, precision), mesh in zip(product(SYNCS, PRECISIONS), cycle(MESHES), strict=False)
    ]


def watch(pool: RankPool, case: Case, candidate: str = "WATCHED") -> Trace:
    (assembly,) = run_all(pool, [(case, planted_around(candidate))], traced=True)
    return assembly.trace


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_step_is_plain_training(
    harness_pool: RankPool, wrapper: Wrapper, candidate: str
) -> None:
    jobs = ((case, candidate) for case in wrapped_cases(wrapper))
    for comparison in evaluate_all(jobs, harness_pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
def test_fsdp_may_cut_parameters_unevenly(harness_pool: RankPool) -> None:
    # Four ranks share 5 rows of one parameter and 2 rows of another, so some ranks have none.
    case = replace(CASE, heads=2, kv_heads=1, head_dim=2, vocab=5, wrapper="fsdp")
    comparison = evaluate(case, "native-local", harness_pool)
    assert comparison.verdict.passed, explain(comparison)


@pytest.fixture
def patient_pool(harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> RankPool:
    """The pool of the session with a long deadline, since compiling may take long."""
    monkeypatch.setattr(harness_pool.deadlines, "case", 120.0)
    return harness_pool


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "fp64", "wrapper": "ddp"},
        pytest.param(
            {"dtype": "fp64", "wrapper": "fsdp", "checkpoint": True}, marks=pytest.mark.long
        ),
        {"dtype": "bf16", "mixed": True, "checkpoint": True},
    ],
)
def test_a_compiled_step_is_plain_training(patient_pool: RankPool, changes: Switches) -> None:
    case = replace(ALONE, compiled=True, **changes)
    comparison = evaluate(case, "native-local", patient_pool)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
def test_a_compiled_step_that_is_wrong_is_found(patient_pool: RankPool) -> None:
    case = replace(ALONE, compiled=True)
    comparison = verdict_only(case, planted_around("FIRST_LAYER_FOR_ALL"), patient_pool)
    assert comparison.verdict is Verdict.DIVERGED


@pytest.mark.slow
@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize(
    ("name", "changes", "looks"),
    [
        ("SHARES_AVERAGED", {"wrapper": "ddp"}, "gradient-scaled"),
        ("SHARES_AVERAGED", {"wrapper": "fsdp"}, "gradient-scaled"),
        ("NEVER_REDUCES", {"wrapper": "ddp"}, "replica-split"),
        ("NEVER_REDUCES", {"wrapper": "fsdp"}, "gradient-missing"),
        ("AMONG_REPLICAS", {"wrapper": "ddp"}, "replica-split"),
        ("AMONG_REPLICAS", {"wrapper": "fsdp"}, "replica-split"),
        ("REDUCES_AGAIN", {"sync": "each"}, "gradient-partial"),
    ],
)
def test_a_fault_around_a_step_is_found(
    harness_evaluate: Evaluate, name: str, changes: Switches, looks: str
) -> None:
    comparison = harness_evaluate(replace(CASE, **changes), planted_around(name))
    assert comparison.verdict is Verdict.DIVERGED
    assert looks in {look.name for look in comparison.inquiry.looks}


def count_sums(pool: RankPool, wrapper: Wrapper, sync: Sync, candidate: str) -> int:
    """Count the reductions of gradients, each of any number of parameters."""
    trace = watch(pool, replace(ALONE, wrapper=wrapper, sync=sync), candidate)
    return int(trace["reduce in Double"].values)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gradients_are_reduced_after_the_last_micro_batch_or_after_each(
    harness_pool: RankPool, wrapper: Wrapper
) -> None:
    after_last, after_each = (count_sums(harness_pool, wrapper, sync, "WATCHED") for sync in SYNCS)
    assert after_each == after_last * ALONE.micro_batches > 0
    if wrapper != "none":
        # The count shows a step that reduces after each micro-batch without being asked to.
        assert count_sums(harness_pool, wrapper, "last", "ALWAYS_REDUCES") == after_each


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gradients_in_half_precision_are_summed_in_fp32(
    harness_pool: RankPool, wrapper: Wrapper
) -> None:
    def summed_in(candidate: str) -> set[str]:
        case = replace(ALONE, wrapper=wrapper, dtype="bf16")
        trace = watch(harness_pool, case, candidate)
        return {key for key in trace if key.startswith("reduce in")}

    assert summed_in("WATCHED") == {"reduce in Float"}
    if wrapper != "none":
        assert summed_in("SUMS_SHORT") == {"reduce in BFloat16"}


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_parameters_held_in_fp32_are_used_and_sent_in_half_precision(
    harness_pool: RankPool, wrapper: Wrapper
) -> None:
    def is_short(trace: Trace, key: str) -> bool:
        """Whether bf16 represents all values exactly."""
        values = torch.tensor(trace[key].values)
        return bool((values.bfloat16() == values).all())

    def mixed(candidate: str) -> Trace:
        case = replace(ALONE, wrapper=wrapper, dtype="bf16", mixed=True)
        return watch(harness_pool, case, candidate)

    trace = mixed("WATCHED")
    assert is_short(trace, "logits")
    assert not is_short(trace, "grad.layers.0.q")
    if wrapper == "none":
        assert is_short(mixed("HELD_SHORT"), "grad.layers.0.q")
        assert not is_short(mixed("COMPUTED_WIDE"), "logits")
    if wrapper == "fsdp":
        assert "gather in BFloat16" in trace
        assert "gather in BFloat16" not in mixed("SENDS_WIDE")


def count_graphs(pool: RankPool, candidate: str) -> list[int]:
    """Count the graphs that torch compiles for each of several models; its limit is two."""
    alone = replace(ALONE, sp=1, layers=1, compiled=True)
    return [
        int(watch(pool, replace(alone, head_dim=size), candidate)["graphs"].values)
        for size in (4, 6, 10)
    ]


@pytest.mark.slow
def test_a_compiled_case_is_compiled_no_matter_what_ran_before(patient_pool: RankPool) -> None:
    # Each layer has two: up to the exchange, and the feed-forward part.
    assert count_graphs(patient_pool, "WATCHED") == [2, 2, 2]
    assert count_graphs(patient_pool, "UNCOMPILED")[-1] == 0
