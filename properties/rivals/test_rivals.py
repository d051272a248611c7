"""Rivals accept plain training, errors up to their bounds, and errors that they cannot see."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from harness.campaign.case_source import draw
from harness.candidates.own.mutants import BANK
from harness.case import Case, parse
from harness.generation import cases
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference
from harness.trace import Entry, Trace
from properties.rivals.__main__ import REQUEST
from properties.rivals.contest import Standing, contest, on_own_shapes
from properties.rivals.rule import Rival
from properties.rivals.table import FIRST_Q, GRADIENT_BOUND, GRADIENTS, LOGITS, RIVALS

Change = Callable[[Any], Any]

BY_NAME = {rival.name: rival for rival in RIVALS}
for_each_rival = pytest.mark.parametrize("rival", RIVALS, ids=BY_NAME)


@cache
def plain_trace(case: Case) -> Trace:
    return reference(case, TORCH_DTYPES[case.dtype], traced=True)


def with_change(trace: Trace, change: Change, *patterns: str) -> Trace:
    """Change the values of all entries whose keys match a pattern."""
    other = Trace()
    for key in trace:
        entry = trace[key]
        if any(fnmatchcase(key, pattern) for pattern in patterns):
            entry = replace(entry, values=change(np.asarray(entry.values, np.float64)))
        other.put(key, entry)
    return other


def scale_by(factor: float) -> Change:
    return lambda values: values * factor


def accepts_on_its_shapes(rival: Rival, change: Change, *patterns: str) -> list[bool]:
    return [
        rival.accepts(case, plain_trace(case), with_change(plain_trace(case), change, *patterns))
        for case in rival.shapes
    ]


def test_names_are_unique_sources_are_files_and_shapes_are_small() -> None:
    assert len(BY_NAME) == len(RIVALS) > 20
    for rival in RIVALS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+: [\w./-]+", rival.source), rival.source
        assert 1 <= len(rival.shapes) == len(set(rival.shapes)) <= 4, rival.name
        for case in rival.shapes:
            assert 2 <= case.sp <= case.ranks <= 8, case
            assert case.tokens <= 600, case
            assert case.layers <= 2, case


@pytest.mark.slow(but=3)
@for_each_rival
def test_a_rival_accepts_plain_training_and_looks_only_at_its_patterns(
    rival: Rival,
) -> None:
    assert all(accepts_on_its_shapes(rival, scale_by(1.0)))
    case = rival.shapes[0]
    patterns = [check.pattern for check in rival.checks]
    others = [key for key in plain_trace(case) if not any(fnmatchcase(key, p) for p in patterns)]
    assert rival.accepts(
        case, plain_trace(case), with_change(plain_trace(case), scale_by(math.nan), *others)
    )


@settings(max_examples=20)
@given(cases(dtypes=("fp64", "fp32", "bf16")))
def test_every_rival_accepts_plain_training_on_any_case(case: Case) -> None:
    trace = reference(case, TORCH_DTYPES[case.dtype], traced=True)
    assert [rival.name for rival in RIVALS if not rival.accepts(case, trace, trace)] == []


@pytest.mark.slow(but=3)
@for_each_rival
def test_a_rival_refuses_nan_and_missing_rows_where_it_looks(
    rival: Rival,
) -> None:
    def without_a_row(trace: Trace, pattern: str) -> Trace:
        short = Trace()
        for key in trace:
            entry = trace[key]
            if fnmatchcase(key, pattern) and entry.values.ndim:
                tokens = None if entry.tokens is None else entry.tokens[1:]
                entry = Entry(entry.values[1:], tokens)
            short.put(key, entry)
        return short

    for check in rival.checks:
        assert not any(accepts_on_its_shapes(rival, scale_by(math.nan), check.pattern))
        case = rival.shapes[0]
        short = without_a_row(plain_trace(case), check.pattern)
        # A loss has no rows, and a comparison of one number may hide a missing row.
        if check.pattern != "loss" and check.view.__name__ not in ("mean", "norm", "zeros"):
            assert not rival.accepts(case, plain_trace(case), short)


def trace_of_twos() -> Trace:
    """Make a trace with every key that some rule compares, and the value 2 in all elements."""
    trace, tokens = Trace(), np.arange(2)
    trace.put("layers.0.attn.out", Entry(np.full((2, 2, 2), 2.0), tokens))
    trace.put("logits", Entry(np.full((2, 3), 2.0), tokens))
    trace.put("nll", Entry(np.array([2.0]), tokens[:1]))
    trace.put("loss", Entry(np.array(2.0)))
    for name in ("head", *(f"layers.0.{part}" for part in "oqkv")):
        trace.put(f"grad.{name}", Entry(np.full((2, 2), 2.0)))
    return trace


# The norm of the five gradients in that trace, of four elements each.
NORM = math.sqrt(5 * 4 * 2.0**2)


def bound_from_plain(rtol: float, atol: float, size: float = 2.0) -> float:
    """Return the largest accepted factor of `size` if the bound is relative to plain training."""
    return 1 + rtol + atol / size


def bound_from_candidate(rtol: float, atol: float, size: float = 2.0) -> float:
    """Return the largest accepted factor of `size` if the bound is relative to the candidate."""
    return (1 + atol / size) / (1 - rtol)


HALF_AN_ULP = 1 + 2.0**-24
# For each bound: the rival, dtype, keys, and the largest accepted factor of the value 2.
BOUNDS = [
    ("verl-model", "bf16", "logits", bound_from_candidate(1e-2, 3e-5)),
    ("verl-model", "bf16", FIRST_Q, bound_from_plain(1e-2, 1e-3)),
    ("verl-log-probs", "bf16", "nll", bound_from_plain(1e-3, 1e-3)),
    ("verl-training", "bf16", "loss", bound_from_candidate(1e-2, 1e-2)),
    ("verl-training", "bf16", "grad.*", bound_from_candidate(3e-2, 1e-4, NORM)),
    ("deepspeed-zero2", "bf16", "loss", HALF_AN_ULP),
    ("deepspeed-zero2", "bf16", FIRST_Q, bound_from_candidate(1.6e-2, 1e-3)),
    ("deepspeed-zero3", "fp32", "loss", HALF_AN_ULP),
    ("deepspeed-zero3", "fp32", FIRST_Q, bound_from_candidate(1.3e-6, 1e-5)),
    ("deepspeed-zero3", "bf16", FIRST_Q, bound_from_candidate(1.6e-2, 1e-5)),
    ("deepspeed-zero3", "fp16", FIRST_Q, bound_from_candidate(1e-3, 1e-5)),
    ("deepspeed-zero3", "fp64", FIRST_Q, bound_from_candidate(1e-7, 1e-7)),
    ("deepspeed-flex-zero2", "bf16", "loss", bound_from_candidate(1e-5, 1e-5)),
    ("deepspeed-flex-zero2", "bf16", FIRST_Q, bound_from_candidate(1.6e-2, 1e-3)),
    ("deepspeed-flex-zero3", "fp32", "loss", bound_from_candidate(1e-5, 1e-5)),
    ("deepspeed-flex-zero3", "fp32", FIRST_Q, bound_from_candidate(1.3e-6, 1e-5)),
    ("arctic-training", "bf16", "loss", bound_from_candidate(1e-6, 1e-6)),
    ("transformers", "fp32", "loss", bound_from_plain(2e-5, 2e-2)),
    ("megatron-training", "bf16", "loss", bound_from_plain(0.05, 0.0)),
    ("megatron-gradients", "bf16", "grad.head", 1 / (1 - GRADIENT_BOUND)),
    ("veomni-training", "bf16", "loss", bound_from_plain(0.1, 0.1)),
    ("veomni-training", "bf16", "grad.*", bound_from_plain(0.1, 0.1, NORM)),
    ("veomni-attention", "fp32", "layers.*", bound_from_candidate(1e-5, 1e-6)),
    ("veomni-attention", "fp32", "grad.layers.0.o", bound_from_candidate(1e-4, 1e-3)),
    ("veomni-attention", "fp32", FIRST_Q, bound_from_candidate(1e-4, 2e-3)),
    ("ms-swift", "fp32", "loss", bound_from_plain(1.3e-6, 1e-5)),
    ("ms-swift", "fp32", "grad.head", bound_from_plain(1.3e-6, 1e-5)),
    ("twinkle", "bf16", "logits", bound_from_plain(1e-2, 5e-3)),
    ("twinkle", "bf16", "loss", bound_from_plain(0.0, 5e-3)),
    ("twinkle", "bf16", "grad.layers.0.v", bound_from_plain(2e-2, 1e-2)),
    ("yunchang", "bf16", "layers.*", bound_from_plain(0.0, 0.1)),
    ("torchtitan-loss", "bf16", "loss", HALF_AN_ULP),
    ("torchtitan-logits", "fp32", "logits", bound_from_plain(1e-4, 0.0)),
    ("transformer-engine", "bf16 heads=4/4", "layers.*", bound_from_candidate(2.5e-2, 2.5e-2)),
    ("transformer-engine", "fp16", "grad.layers.0.k", bound_from_candidate(5e-3, 5e-3)),
    # With grouped queries the bound is wider.
    ("transformer-engine", "bf16 heads=4/2", "layers.*", bound_from_candidate(3.5e-2, 3.5e-2)),
    ("pytorch", "bf16", "layers.*", bound_from_candidate(1e-5, 2e-3)),
    ("pytorch", "bf16", "grad.layers.0.k", bound_from_candidate(1e-5, 1.6e-2)),
]


@pytest.mark.parametrize(("name", "dtype", "keys", "factor"), BOUNDS)
def test_a_value_just_inside_a_bound_is_accepted_and_one_just_outside_is_refused(
    name: str, dtype: str, keys: str, factor: float
) -> None:
    case = parse(f"case/1 rows=2:11 dim=2 sp=2 dtype={dtype}")
    for share, accepted in ((0.999, True), (1.001, False)):
        off = with_change(trace_of_twos(), scale_by(1 + (factor - 1) * share), keys)
        assert BY_NAME[name].accepts(case, trace_of_twos(), off) is accepted


def test_every_bound_of_every_rival_is_tested() -> None:
    # Another test tries how many zeros megatron-training accepts.
    tested = {(name, keys) for name, _, keys, _ in BOUNDS} | {("megatron-training", GRADIENTS)}
    for rival in RIVALS:
        patterns = [keys for name, keys in tested if name == rival.name]
        for check in rival.checks:
            compared = [key for key in trace_of_twos() if fnmatchcase(key, check.pattern)]
            assert any(fnmatchcase(key, keys) for key in compared for keys in patterns), check


def test_megatron_counts_zeros_up_to_a_fifth_more() -> None:
    def with_zeros(count: int) -> Trace:
        values = np.ones(100)
        values[:count] = 0.0
        trace = trace_of_twos()
        trace.put("grad.head", Entry(values))
        return trace

    rival, case = BY_NAME["megatron-training"], parse("case/1 rows=2:11 dtype=bf16")
    assert rival.accepts(case, with_zeros(10), with_zeros(12))
    assert not rival.accepts(case, with_zeros(10), with_zeros(13))


def test_a_candidate_may_have_a_loss_for_tokens_that_do_not_count() -> None:
    rival, case = BY_NAME["verl-log-probs"], parse("case/1 rows=2:11 dtype=bf16")
    more = trace_of_twos()
    more.put("nll", Entry(np.array([2.0, 9.0]), np.arange(2)))
    assert rival.accepts(case, trace_of_twos(), more)


@pytest.mark.parametrize(
    ("name", "keys", "change"),
    [
        ("verl-training", GRADIENTS, scale_by(-1.0)),
        ("veomni-training", GRADIENTS, scale_by(-1.0)),
        ("megatron-training", GRADIENTS, scale_by(-1.0)),
        ("veomni-training", "grad.layers.*.q", scale_by(0.0)),
        ("verl-model", LOGITS, np.flipud),
    ],
)
def test_a_comparison_of_one_number_hides_wrong_tensors(
    name: str, keys: str, change: Change
) -> None:
    assert all(accepts_on_its_shapes(BY_NAME[name], change, keys))


@pytest.mark.slow
def test_rival_rules_are_scored_on_the_same_mutants(harness_pool: RankPool) -> None:
    batch = draw(REQUEST, harness_pool.size)
    few = [BY_NAME[name] for name in ("accelerate", "arctic-training", "torchtitan-loss")]
    standings = contest([BANK["B24"], BANK["B94"]], batch[:2], harness_pool, few)
    by_name = {standing.name: standing for standing in standings}
    # B24 misreports the loss; B94 crashes, which every rule counts as found.
    assert by_name["this harness"].on_generated == ["B24", "B94"]
    assert by_name["accelerate"].on_generated == ["B94"]
    assert by_name["this harness"].false_alarms == []
    ranks = harness_pool.size
    assert on_own_shapes(by_name["this harness"], ranks) == "none"
    assert on_own_shapes(by_name["arctic-training"], ranks) == "1"
    assert on_own_shapes(by_name["torchtitan-loss"], ranks) == "not run"
    assert on_own_shapes(Standing("partly", shapes=BY_NAME["yunchang"].shapes), 2) == "0 in part"
