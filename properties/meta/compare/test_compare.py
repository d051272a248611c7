"""The comparison of traces that are made by hand, without a model or ranks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from harness.case import Case, Dtype, parse
from harness.compare import Comparison, Verdict, compare
from harness.compare.token_ownership import explained_shares, is_cut_evenly
from harness.reference import TORCH_DTYPES, reference
from harness.report import explain
from harness.trace import (
    Assembly,
    Entry,
    Fault,
    Fragment,
    Kind,
    Misfit,
    MisfitKind,
    Trace,
    assemble,
    digest,
)

# Rank 0 holds tokens 0 to 3, rank 1 tokens 4 to 6 and a pad; the shard edge is inside row 0.
CASE = parse("case/1 rows=5:11111,2:11 heads=2 dim=2 sp=2")
HEAD, NORM, Q = "grad.head", "grad.norm", "layers.0.attn.q"
# More bytes than attention over any of these cases needs.
ENOUGH_BYTES = 10_000
GRADIENTS = (HEAD, NORM, *(f"grad.{i}" for i in range(8)))
Change = Callable[[Any], Any]


def oracle() -> Trace:
    trace, supervised = Trace(), np.array([0, 1, 2, 3, 5])
    trace.put("labels", Entry(np.array([3, 1, 4, 1, 5]), supervised))
    trace.put(Q, Entry(np.arange(1.0, 29.0).reshape(7, 2, 2), np.arange(7)))
    trace.put("nll", Entry(np.array([1.0, 2.0, 0.5, 3.0, 1.5]), supervised))
    trace.put("loss", Entry(np.array(1.6)))
    trace.put(HEAD, Entry(np.array([[1.0, -2.0], [0.5, 4.0]])))
    trace.put(NORM, Entry(np.array([0.25, -1.0])))
    return trace


def element(index: Any, value: float) -> Change:
    """Return the change that sets one element to a value."""

    def change(values: Any) -> Any:
        copy = values.copy()
        copy[index] = value
        return copy

    return change


def times(factor: float) -> Change:
    return lambda values: values * factor


def fragments_of(case: Case, trace: Trace, changes: dict[str, Change]) -> list[list[Fragment]]:
    """Return by rank the fragments of a candidate whose trace has these changes by key."""
    ranks: list[list[Fragment]] = [[] for _ in range(case.sp)]
    numbers = np.pad(np.arange(case.tokens), (0, -case.tokens % case.sp), constant_values=-1)
    for key in trace:
        tokens, values = trace[key].tokens, changes.get(key, np.copy)(trace[key].values)
        for rank, shard in zip(ranks, np.split(numbers, case.sp), strict=True):
            if tokens is None:
                rank.append(Fragment(key, values, digest=digest(values)))
                continue
            whole = np.zeros((case.tokens, *values.shape[1:]), values.dtype)
            whole[tokens] = values
            real = shard[shard >= 0]
            rank.append(Fragment(key, whole[real], real, pads=len(shard) - len(real)))
    return ranks


def judge(
    ranks: list[list[Fragment]],
    *,
    case: Case = CASE,
    against: tuple[Trace, Trace] | None = None,
) -> Comparison:
    """Compare the fragments of all ranks with an oracle and a baseline."""
    assembly = assemble(case, ranks)
    assert isinstance(assembly, Assembly)
    assembly.sent = (ENOUGH_BYTES,) * case.ranks
    expected, baseline = against or (oracle(), oracle())
    return compare(case, "planted", expected, [baseline], assembly)


def judge_changes(changes: dict[str, Change]) -> Comparison:
    """Compare the oracle, with these changes by key, with itself."""
    return judge(fragments_of(CASE, oracle(), changes))


def test_equal_bits_are_equal() -> None:
    comparison = judge_changes({})
    assert comparison.verdict is Verdict.EQUAL
    assert (comparison.measured.elements, comparison.measured.used) == (
        5 + 28 + 5 + 1 + 4 + 2,
        0.0,
    )


def test_an_error_of_a_rounding_is_within_and_a_larger_one_diverges() -> None:
    within, beyond = (judge_changes({HEAD: times(1 + error)}) for error in (1e-13, 1e-11))
    assert (within.verdict, beyond.verdict) == (Verdict.WITHIN, Verdict.DIVERGED)
    assert 0 < within.measured.used < 1 < beyond.measured.used


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_gradients_that_are_all_roundings_of_the_loss_are_measured_by_the_loss(
    loss: float,
) -> None:
    # As without targets, if only the loss of a balanced router is left.
    balanced = oracle()
    balanced.put("loss", Entry(np.array(loss)))
    for key in (HEAD, NORM):
        balanced.put(key, Entry(1e-19 * oracle()[key].values))
    against = (balanced, balanced)
    roundings = fragments_of(CASE, balanced, {HEAD: times(-3.0), NORM: times(0.0)})
    assert judge(roundings, against=against).verdict is Verdict.WITHIN
    for factor in (1e15, np.nan):
        wrong = fragments_of(CASE, balanced, {HEAD: times(factor)})
        assert judge(wrong, against=against).verdict is Verdict.DIVERGED
    # Below fp64 the baseline shows how large roundings are, so the loss is not needed.
    single = replace(CASE, dtype="fp32")
    plain = Trace()
    for key in balanced:
        plain.put(key, replace(balanced[key], values=1 * balanced[key].values))
    wrong = fragments_of(single, plain, {HEAD: times(1e9)})
    comparison = judge(wrong, case=single, against=(balanced, plain))
    assert comparison.verdict is Verdict.DIVERGED
    # If only one gradient is that small, the others keep their usual budgets.
    balanced.put(NORM, oracle()[NORM])
    wrong = fragments_of(CASE, balanced, {NORM: times(1 + 1e-11)})
    assert judge(wrong, against=against).verdict is Verdict.DIVERGED


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", ["nll", "loss", HEAD, Q])
def test_an_element_that_is_not_finite_diverges_and_exceeds_its_budget(
    key: str, value: float
) -> None:
    comparison = judge_changes({key: element((0,) * oracle()[key].values.ndim, value)})
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.measured.first is not None
    assert comparison.measured.first.key == key
    assert comparison.measured.used > 1
    everywhere = judge_changes({key: lambda values: np.full_like(values, value)})
    assert everywhere.verdict is Verdict.DIVERGED


@pytest.mark.parametrize(
    ("index", "place"),
    [
        ((3, 1, 0), (0, 3, 0, "last")),
        ((4, 1, 0), (0, 4, 1, "first")),
        ((0, 0, 1), (0, 0, 0, "")),
        # Row 1 begins inside the shard of rank 1.
        ((5, 0, 0), (1, 0, 1, "")),
    ],
)
def test_the_first_divergence_is_the_first_in_execution_order(
    index: tuple[int, ...], place: tuple[int, int, int, str]
) -> None:
    comparison = judge_changes({Q: element(index, 100.0), HEAD: times(2), "loss": times(2)})
    first = comparison.measured.first
    assert first is not None
    assert (first.key, first.index, first.got) == (Q, index, 100.0)
    assert first.expected == oracle()[Q].values[index]
    assert (first.row, first.position, first.owner, first.edge) == place
    assert {r.key: r.wrong for r in comparison.measured.keys if r.wrong} == {
        Q: 1,
        "loss": 1,
        HEAD: 4,
    }


@pytest.mark.parametrize("key", ["nll", "loss", HEAD, NORM])
def test_a_required_key_that_is_missing_is_a_fault(key: str) -> None:
    ranks = fragments_of(CASE, oracle(), {})
    comparison = judge([[f for f in rank if f.key != key] for rank in ranks])
    assert comparison.verdict is Verdict.FAULT
    assert comparison.fault is not None
    assert comparison.fault.summary == f"key {key!r} was never emitted"


def test_a_misspelt_key_is_mentioned_in_the_fault_of_the_missing_one() -> None:
    misspelt = HEAD.replace("grad.", "grads.")
    ranks = fragments_of(CASE, oracle(), {})
    comparison = judge(
        [[replace(f, key=misspelt) if f.key == HEAD else f for f in rank] for rank in ranks]
    )
    assert comparison.fault is not None
    near = f"near: {misspelt!r}, which is unknown"
    assert comparison.fault.summary == f"key {HEAD!r} was never emitted; {near}"


def test_gradients_of_another_model_are_a_fault_that_suggests_against_self() -> None:
    comparison = judge(
        [
            [replace(f, key=f.key.replace("grad.", "grad.model.")) for f in rank]
            for rank in fragments_of(CASE, oracle(), {})
        ]
    )
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.REFERENCE
    assert comparison.fault.summary.endswith(
        "; add --against self, and the step is compared with itself at sp 1"
    )
    assert (
        "emitted grad.model.head, and plain training of the harness's own model has grad.head"
        in comparison.fault.summary
    )


@pytest.mark.parametrize("change", [np.ravel, lambda v: v[:1], lambda v: v.astype(int)])
def test_a_tensor_of_another_shape_or_kind_is_a_fault(change: Change) -> None:
    comparison = judge_changes({HEAD: change})
    assert comparison.verdict is Verdict.FAULT
    assert comparison.fault is not None
    assert (comparison.fault.kind, comparison.fault.last_key) == (Kind.FRAGMENT, HEAD)


def test_a_misfit_diverges_even_if_every_value_is_right() -> None:
    ranks = fragments_of(CASE, oracle(), {})
    repeated = Fragment("nll", np.array([3.0]), np.array([3]))
    comparison = judge([ranks[0], [*ranks[1], repeated]])
    assert (comparison.verdict, comparison.measured.first) == (Verdict.DIVERGED, None)
    assert comparison.measured.misfits == (Misfit(MisfitKind.TWICE, "nll", (3,), (0, 1)),)


@pytest.mark.parametrize(
    ("factor", "scale"),
    [
        (2, "2 of the reference = sp"),
        (0.5, "0.5 of the reference = 1/sp"),
        (-1, "-1 of the reference = -1"),
        (0, "0 of the reference = 0: never reached, or never reduced"),
        (3, "3 of the reference"),
    ],
)
def test_one_factor_of_all_gradients_is_found_and_named(factor: float, scale: str) -> None:
    expected = oracle()
    expected.put("grad.unused", Entry(np.zeros(3)))
    changes = dict.fromkeys((HEAD, NORM, "grad.unused"), times(factor))
    ranks = fragments_of(CASE, expected, changes)
    comparison = judge(ranks, against=(expected, expected))
    assert comparison.verdict is Verdict.DIVERGED
    assert str(comparison.measured.scale) == f"every gradient is {scale}"
    assert judge_changes({HEAD: times(factor)}).measured.scale is None


def with_pads(ranks: list[list[Fragment]], *pads: int) -> list[list[Fragment]]:
    """Return the fragments with so many pads on each rank."""
    return [[replace(f, pads=n) for f in rank] for rank, n in zip(ranks, pads, strict=True)]


def test_a_run_in_which_every_rank_computes_all_tokens_is_vacuous() -> None:
    ranks = fragments_of(CASE, oracle(), {})
    for pads in ((3, 4), (4, 5)):
        comparison = judge(with_pads(ranks, *pads))
        summary = "every rank of replica 0 computed on all 7 tokens"
        assert comparison.verdict is Verdict.FAULT
        assert comparison.fault == Fault(kind=Kind.VACUOUS, summary=summary)


def test_peers_may_hold_different_numbers_of_tokens() -> None:
    ranks = fragments_of(CASE, oracle(), {})
    assert judge(with_pads(ranks, 0, 0)).verdict is Verdict.EQUAL


def test_a_stream_padded_for_two_pieces_per_rank_is_parallel() -> None:
    # The 7 tokens are padded to 8 or 12, and each rank has half.
    ranks = fragments_of(CASE, oracle(), {})
    for pads in ((0, 1), (2, 3)):
        assert judge(with_pads(ranks, *pads)).verdict is Verdict.EQUAL


def test_a_table_of_very_unequal_rows_is_parallel_although_its_padding_is_large() -> None:
    # Three rows of six columns, and each rank has half of every row.
    case = parse("case/1 rows=1:1,1:1,5:11111 heads=2/2 layers=1 vocab=8 sp=2 dp=1 seed=0")
    expected = Trace()
    expected.put("nll", Entry(np.ones(4), np.array([2, 3, 4, 5])))
    expected.put("loss", Entry(np.array(1.0)))
    expected.put(HEAD, Entry(np.ones(3)))
    ranks = with_pads(fragments_of(case, expected, {}), 5, 6)
    assembly = assemble(case, ranks)
    assert isinstance(assembly, Assembly)
    assert min(assembly.local_rows) >= case.tokens
    assert judge(ranks, case=case, against=(expected, expected)).verdict is Verdict.EQUAL


def test_a_table_may_be_padded_on_the_left_and_as_wide_as_the_whole_batch() -> None:
    case = parse("case/1 rows=1:1,1:1,3:111,5:11111 layers=1 sp=2 dp=1 micro=2")
    tokens = np.array([2, 3, 5, 6, 7, 8])
    # Each rank has three of six columns. The last two rows are in columns 3 to 5 and 1 to 5.
    by_column, irregular = np.array([1, 1, 0, 0, 1, 1]), np.array([0, 1, 1, 0, 1, 1])
    for owners, is_explained in ((by_column, True), (irregular, False)):
        nll = Entry(np.ones(6), tokens, owners)
        assert (4 * 6 // 2 in explained_shares(case, 0, nll)) == is_explained


def test_a_table_may_have_all_answers_begin_in_one_column() -> None:
    case = parse("case/1 rows=8:11111111,5:00111,2:11 layers=1 sp=2 dp=1")
    # Prompts of one, two and one token end in the second of ten columns, of which each rank has
    # five. With the last token of the second row on rank 1, a column would be on both ranks.
    by_column, irregular = np.zeros((2, 15), int)
    by_column[4:8] = irregular[4:8] = irregular[12] = 1
    for owners, is_explained in ((by_column, True), (irregular, False)):
        nll = Entry(np.ones(15), np.arange(15), owners)
        assert (3 * 10 // 2 in explained_shares(case, 0, nll)) == is_explained


def test_a_batch_of_answers_may_be_padded_before_it_is_split_into_micro_batches() -> None:
    case = parse("case/1 rows=7:0000001,2:01,8:01111111,2:01 layers=1 sp=2 dp=1 micro=2")
    # The longest prompt has six tokens and the longest answer of another row seven: 13 columns,
    # and one more so that they can be halved. Every answer begins in the first column of rank 1.
    owners = np.array([0] * 6 + [1] + [0, 1] + [0] + [1] * 7 + [0, 1])
    nll = Entry(np.ones(19), np.arange(19), owners)
    assert 4 * 14 // 2 in explained_shares(case, 0, nll)


def test_streams_may_be_packed_to_any_length() -> None:
    case = parse("case/1 rows=9:111101101,9:000000001,1:1 layers=1 sp=2 dp=1 micro=2")
    # There are two streams, of 18 tokens and of one. Each rank has `share` places of each.
    for share in (9, 10, 12, 17):
        places = np.array([*range(18), 0])
        nll = Entry(np.ones(19), np.arange(19), places // share)
        assert is_cut_evenly(case, 0, nll, 2 * share)
        # Pieces that are not equal do not fit, nor do ranks that compute both streams whole.
        assert not is_cut_evenly(case, 0, nll, 2 * share + 2)
        assert not is_cut_evenly(case, 0, nll, 2 * 18)
    # Each rank has an early and a late piece of five places; the last places are padding.
    balanced = np.array([0, 1, 1, 0])[np.array([*range(18), 0]) // 5]
    assert is_cut_evenly(case, 0, Entry(np.ones(19), np.arange(19), balanced), 2 * 10)


def test_ranks_whose_columns_are_scattered_do_not_count_as_a_table() -> None:
    case = parse("case/1 rows=8:11111111,8:00000001 layers=1 sp=2 dp=1")
    # Both ranks computed two rows of eight, and each reports some tokens of every row. A table
    # with answers in one column would have 14 columns, of which rank 0 has 0, 1, 6, 7, 12 and 13.
    nll = Entry(np.ones(16), np.arange(16), np.array([0, 0, 1, 1, 1, 1, 0, 0] * 2))
    assert 16 not in explained_shares(case, 0, nll)


def test_a_run_without_edge_labels_or_without_gradients_is_vacuous() -> None:
    without_edge, without_gradients = oracle(), oracle()
    without_edge.put("nll", Entry(np.ones(4), np.array([0, 1, 2, 5])))
    for key in (HEAD, NORM):
        without_gradients.put(key, Entry(np.zeros(0)))
    for trace, summary in (
        (without_edge, "no supervised label at a shard edge was examined"),
        (without_gradients, "not one element of a gradient was examined"),
    ):
        comparison = judge(fragments_of(CASE, trace, {}), against=(trace, trace))
        assert comparison.fault == Fault(kind=Kind.VACUOUS, summary=summary)


def test_a_run_with_rows_of_one_token_each_is_not_vacuous() -> None:
    case = parse("case/1 rows=1:1,1:1,1:1 micro=3 sp=2")
    trace = reference(case, torch.float64)
    ranks = fragments_of(case, trace, {})
    (nll,) = [f for f in ranks[0] if f.key == "nll"]
    # Each micro-batch puts its token on rank 0 and a pad on rank 1.
    all_tokens = replace(nll, values=np.zeros(3), tokens=np.arange(3), pads=0)
    no_tokens = replace(nll, values=np.zeros(0), tokens=np.arange(0), pads=3)
    pieces = (all_tokens, no_tokens)
    moved = [[piece, *rank[1:]] for piece, rank in zip(pieces, ranks, strict=True)]
    assert judge(moved, case=case, against=(trace, trace)).verdict is Verdict.EQUAL


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
def test_no_budget_accepts_a_gradient_that_is_zero_doubled_or_negated(dtype: Dtype) -> None:
    case = parse(f"case/1 rows=9:000111111,7:1110111 layers=2 sp=2 dtype={dtype}")
    against = reference(case, torch.float64), reference(case, TORCH_DTYPES[dtype])
    baseline = against[1]
    unchanged = fragments_of(case, baseline, {})
    assert judge(unchanged, case=case, against=against).verdict is Verdict.EQUAL
    for key in [key for key in baseline if key.startswith("grad.")]:
        for factor in (0, 2, -1):
            ranks = fragments_of(case, baseline, {key: times(factor)})
            comparison = judge(ranks, case=case, against=against)
            assert comparison.verdict is Verdict.DIVERGED
            assert [r.key for r in comparison.measured.keys if r.wrong] == [key]


def in_bf16(noise: dict[str, float]) -> tuple[Case, tuple[Trace, Trace]]:
    """Return a bf16 case with eight more gradients, its oracle, and its baseline.

    By key, `noise` is the share by which the baseline strays, in every row of that tensor.
    """
    case, exact, plain = replace(CASE, dtype="bf16"), oracle(), oracle()
    for i in range(8):
        for trace in (exact, plain):
            trace.put(f"grad.{i}", Entry(np.linspace(1.0, 2.0, 64).reshape(8, 8)))
    for key, share in noise.items():
        strayed = exact[key].values.copy()
        strayed.reshape(-1)[::8] *= 1 + share
        plain.put(key, replace(exact[key], values=strayed))
    return case, (exact, plain)


def test_a_tensor_whose_elements_are_within_budget_may_be_wrong_as_a_whole() -> None:
    case, against = in_bf16({f"grad.{i}": 0.02 for i in range(8)})
    for factor, verdict in ((1.01, Verdict.WITHIN), (1.05, Verdict.DIVERGED)):
        ranks = fragments_of(case, against[1], {"grad.3": times(factor)})
        comparison = judge(ranks, case=case, against=against)
        assert comparison.verdict is verdict
    (wrong,) = [result for result in comparison.measured.keys if result.wrong]
    # Nearly all elements are above the budget of the whole tensor, so they are listed as wrong.
    assert wrong.key == "grad.3"
    assert 1 < wrong.used < 3
    assert wrong.wrong > 50


def test_a_gradient_that_is_nothing_but_rounding_is_not_counted_and_is_mentioned() -> None:
    case, (expected, baseline) = in_bf16({"grad.0": 1.0})
    ranks = fragments_of(case, baseline, {})
    comparison = judge(ranks, case=case, against=(expected, baseline))
    assert comparison.verdict.passed
    assert comparison.measured.unjudged == ("grad.0",)
    ranks = fragments_of(case, expected, {})
    without_noise = judge(ranks, case=case, against=(expected, expected))
    assert comparison.measured.elements == without_noise.measured.elements - 64
    assert "grad.0: nothing but rounding" in explain(comparison)


@pytest.mark.parametrize(
    ("noise", "hidden"),
    [
        ({"grad.0": 1.0, "grad.1": 2.0, "grad.2": 1.0}, "grad.1 grad.0 grad.2"),
        ({"loss": 1.0}, "loss nll"),
        # The budget of every gradient is so large that a halved one would pass.
        (dict.fromkeys(GRADIENTS, 0.35), " ".join(sorted(GRADIENTS))),
    ],
)
def test_a_case_in_which_rounding_hides_too_many_tensors_is_unsupported(
    noise: dict[str, float], hidden: str
) -> None:
    case, against = in_bf16(noise)
    comparison = judge(fragments_of(case, against[1], {}), case=case, against=against)
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert comparison.fault is None
    assert sorted(comparison.swallowed) == sorted(hidden.split())
    worst = comparison.swallowed[0]
    reason = f"not judgeable in bf16: the rounding of plain training hides {worst}"
    assert comparison.reason == reason
    assert f"  why     {reason}\n" in explain(comparison)


def test_a_wrong_tensor_diverges_even_if_rounding_hides_many_others() -> None:
    case, against = in_bf16({f"grad.{i}": 1.0 for i in range(3)})
    ranks = fragments_of(case, against[1], {"grad.3": times(2.0)})
    comparison = judge(ranks, case=case, against=against)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.swallowed == ()


def test_a_vacuous_run_is_a_fault_even_if_the_case_cannot_be_judged() -> None:
    case, (expected, baseline) = in_bf16({"loss": 1.0})
    assembly = assemble(case, fragments_of(case, baseline, {}))
    assert isinstance(assembly, Assembly)
    assembly.sent, assembly.idle = (ENOUGH_BYTES, ENOUGH_BYTES), (1,)
    comparison = compare(case, "planted", expected, [baseline], assembly)
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.VACUOUS


def test_a_comparison_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match=r"look at \.verdict"):
        bool(judge_changes({}))


def test_the_verdict_of_a_run_is_its_worst_one_and_a_fault_without_any() -> None:
    assert Verdict.worst([]) is Verdict.FAULT
    assert Verdict.worst([Verdict.WITHIN, Verdict.EQUAL]) is Verdict.WITHIN
    assert Verdict.worst([Verdict.DIVERGED, Verdict.FAULT, Verdict.EQUAL]) is Verdict.DIVERGED
    assert [v for v in Verdict if v.passed] == [Verdict.EQUAL, Verdict.WITHIN]
