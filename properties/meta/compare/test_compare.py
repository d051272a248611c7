"""The judge, on traces made by hand: no model, no process."""

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

# Rank 0 holds tokens 0 to 3, rank 1 tokens 4 to 6 and a pad; the edge is inside row 0.
CASE = parse("case/1 rows=5:11111,2:11 heads=2 dim=2 sp=2")
HEAD, NORM, Q = "grad.head", "grad.norm", "layers.0.attn.q"
# Bytes that are more than attention over it needs.
ENOUGH = 10_000
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


def at(index: Any, value: float) -> Change:
    def change(values: Any) -> Any:
        copy = values.copy()
        copy[index] = value
        return copy

    return change


def times(factor: float) -> Change:
    return lambda values: values * factor


def sent(case: Case, trace: Trace, changes: dict[str, Change]) -> list[list[Fragment]]:
    """What the ranks of a candidate would have sent to end up with a trace so changed."""
    ranks: list[list[Fragment]] = [[] for _ in range(case.sp)]
    numbers = np.pad(np.arange(case.tokens), (0, -case.tokens % case.sp), constant_values=-1)
    for key in trace:
        tokens, values = trace[key].tokens, changes.get(key, np.copy)(trace[key].values)
        for rank, share in zip(ranks, np.split(numbers, case.sp), strict=True):
            if tokens is None:
                rank.append(Fragment(key, values, digest=digest(values)))
                continue
            whole = np.zeros((case.tokens, *values.shape[1:]), values.dtype)
            whole[tokens] = values
            real = share[share >= 0]
            rank.append(Fragment(key, whole[real], real, pads=len(share) - len(real)))
    return ranks


def judge(
    ranks: list[list[Fragment]],
    *,
    case: Case = CASE,
    against: tuple[Trace, Trace] | None = None,
) -> Comparison:
    assembly = assemble(case, ranks)
    assert isinstance(assembly, Assembly)
    assembly.sent = (ENOUGH,) * case.ranks
    truth, plain = against or (oracle(), oracle())
    return compare(case, "planted", truth, [plain], assembly)


def judged(changes: dict[str, Change]) -> Comparison:
    return judge(sent(CASE, oracle(), changes))


def test_the_same_bits_are_equal() -> None:
    comparison = judged({})
    assert comparison.verdict is Verdict.EQUAL
    assert (comparison.elements, comparison.used) == (5 + 28 + 5 + 1 + 4 + 2, 0.0)


def test_a_rounding_is_within_and_a_little_more_is_not() -> None:
    within, beyond = (judged({HEAD: times(1 + error)}) for error in (1e-13, 1e-11))
    assert (within.verdict, beyond.verdict) == (Verdict.WITHIN, Verdict.DIVERGED)
    assert 0 < within.used < 1 < beyond.used


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_where_all_gradients_are_roundings_of_the_loss_none_is_compared_with_another(
    loss: float,
) -> None:
    # No row has a target, and what is left is a router's loss, which is balanced.
    balanced = oracle()
    balanced.put("loss", Entry(np.array(loss)))
    for key in (HEAD, NORM):
        balanced.put(key, Entry(1e-19 * oracle()[key].values))
    against = (balanced, balanced)
    rounded = judge(sent(CASE, balanced, {HEAD: times(-3.0), NORM: times(0.0)}), against=against)
    assert rounded.verdict is Verdict.WITHIN
    for wrong in (1e15, np.nan):
        seen = judge(sent(CASE, balanced, {HEAD: times(wrong)}), against=against)
        assert seen.verdict is Verdict.DIVERGED
    # Below fp64 plain training shows what rounding leaves, and no loss stands for it.
    single = replace(CASE, dtype="fp32")
    plain = Trace()
    for key in balanced:
        plain.put(key, replace(balanced[key], values=1 * balanced[key].values))
    much = judge(sent(single, plain, {HEAD: times(1e9)}), case=single, against=(balanced, plain))
    assert much.verdict is Verdict.DIVERGED
    # Where only one is so small, the others are as exact as ever.
    balanced.put(NORM, oracle()[NORM])
    seen = judge(sent(CASE, balanced, {NORM: times(1 + 1e-11)}), against=against)
    assert seen.verdict is Verdict.DIVERGED


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", ["nll", "loss", HEAD, Q])
def test_what_is_not_finite_diverges_and_has_used_up_its_budget(key: str, value: float) -> None:
    comparison = judged({key: at((0,) * oracle()[key].values.ndim, value)})
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first is not None
    assert comparison.first.key == key
    assert comparison.used > 1
    everywhere = judged({key: lambda values: np.full_like(values, value)})
    assert everywhere.verdict is Verdict.DIVERGED


@pytest.mark.parametrize(
    ("index", "place"),
    [
        ((3, 1, 0), (0, 3, 0, "last")),
        ((4, 1, 0), (0, 4, 1, "first")),
        ((0, 0, 1), (0, 0, 0, "")),
        # Row 1 begins in the middle of rank 1's shard.
        ((5, 0, 0), (1, 0, 1, "")),
    ],
)
def test_the_first_divergence_is_the_first_computed(
    index: tuple[int, ...], place: tuple[int, int, int, str]
) -> None:
    comparison = judged({Q: at(index, 100.0), HEAD: times(2), "loss": times(2)})
    first = comparison.first
    assert first is not None
    assert (first.key, first.index, first.got) == (Q, index, 100.0)
    assert first.expected == oracle()[Q].values[index]
    assert (first.row, first.position, first.owner, first.edge) == place
    assert {r.key: r.wrong for r in comparison.keys if r.wrong} == {Q: 1, "loss": 1, HEAD: 4}


@pytest.mark.parametrize("key", ["nll", "loss", HEAD, NORM])
def test_a_required_key_that_is_missing_is_a_fault(key: str) -> None:
    comparison = judge([[f for f in r if f.key != key] for r in sent(CASE, oracle(), {})])
    assert comparison.verdict is Verdict.FAULT
    assert comparison.fault is not None
    assert comparison.fault.summary == f"key {key!r} was never emitted"


def test_a_key_that_was_misspelt_is_told_where_it_is_missing() -> None:
    misspelt = HEAD.replace("grad.", "grads.")
    fragments = sent(CASE, oracle(), {})
    comparison = judge(
        [[replace(f, key=misspelt) if f.key == HEAD else f for f in of] for of in fragments]
    )
    assert comparison.fault is not None
    near = f"near: {misspelt!r}, which nobody knows"
    assert comparison.fault.summary == f"key {HEAD!r} was never emitted; {near}"


def test_gradients_of_another_model_are_told_as_such_and_not_as_a_crash() -> None:
    fragments = [
        [replace(f, key=f.key.replace("grad.", "grad.model.")) for f in of]
        for of in sent(CASE, oracle(), {})
    ]
    comparison = judge(fragments)
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
    comparison = judged({HEAD: change})
    assert comparison.verdict is Verdict.FAULT
    assert comparison.fault is not None
    assert (comparison.fault.kind, comparison.fault.last_key) == (Kind.FRAGMENT, HEAD)


def test_a_misfit_diverges_although_every_value_is_right() -> None:
    ranks = sent(CASE, oracle(), {})
    again = Fragment("nll", np.array([3.0]), np.array([3]))
    comparison = judge([ranks[0], [*ranks[1], again]])
    assert (comparison.verdict, comparison.first) == (Verdict.DIVERGED, None)
    assert comparison.misfits == (Misfit(MisfitKind.TWICE, "nll", (3,), (0, 1)),)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (2, "2 of the reference = sp"),
        (0.5, "0.5 of the reference = 1/sp"),
        (-1, "-1 of the reference = -1"),
        (0, "0 of the reference = 0: never reached, or never reduced"),
        (3, "3 of the reference"),
    ],
)
def test_gradients_that_are_all_off_by_one_factor_say_so(factor: float, said: str) -> None:
    zero = oracle()
    zero.put("grad.unused", Entry(np.zeros(3)))
    every = dict.fromkeys((HEAD, NORM, "grad.unused"), times(factor))
    comparison = judge(sent(CASE, zero, every), against=(zero, zero))
    assert comparison.verdict is Verdict.DIVERGED
    assert str(comparison.scale) == f"every gradient is {said}"
    assert judged({HEAD: times(factor)}).scale is None


def with_pads(ranks: list[list[Fragment]], *pads: int) -> list[list[Fragment]]:
    return [[replace(f, pads=n) for f in rank] for rank, n in zip(ranks, pads, strict=True)]


def test_a_run_that_was_not_parallel_is_a_fault() -> None:
    ranks = sent(CASE, oracle(), {})
    for comparison, why in (
        (judge(with_pads(ranks, 3, 4)), "every rank of replica 0 computed on all 7 tokens"),
        (judge(with_pads(ranks, 4, 5)), "every rank of replica 0 computed on all 7 tokens"),
    ):
        assert comparison.verdict is Verdict.FAULT
        assert comparison.fault == Fault(kind=Kind.VACUOUS, summary=why)


def test_peers_may_hold_more_or_fewer_tokens_than_each_other() -> None:
    assert judge(with_pads(sent(CASE, oracle(), {}), 0, 0)).verdict is Verdict.EQUAL


def test_a_short_row_dealt_in_two_pieces_per_rank_is_parallel_all_the_same() -> None:
    # Padded from 7 tokens to 8 or 12, of which each rank has half.
    ranks = sent(CASE, oracle(), {})
    for pads in ((0, 1), (2, 3)):
        assert judge(with_pads(ranks, *pads)).verdict is Verdict.EQUAL


def test_a_table_of_very_unequal_rows_is_parallel_all_the_same() -> None:
    # Nine columns of which three are padding, and each rank has half of every row.
    case = parse("case/1 rows=1:1,1:1,5:11111 heads=2/2 layers=1 vocab=8 sp=2 dp=1 seed=0")
    truth = Trace()
    truth.put("nll", Entry(np.ones(4), np.array([2, 3, 4, 5])))
    truth.put("loss", Entry(np.array(1.0)))
    truth.put(HEAD, Entry(np.ones(3)))
    ranks = with_pads(sent(case, truth, {}), 5, 6)
    assembly = assemble(case, ranks)
    assert isinstance(assembly, Assembly)
    assert min(assembly.local_rows) >= case.tokens
    assert judge(ranks, case=case, against=(truth, truth)).verdict is Verdict.EQUAL


def test_a_table_may_be_padded_all_on_the_left_and_as_wide_as_the_whole_batch() -> None:
    case = parse("case/1 rows=1:1,1:1,3:111,5:11111 layers=1 sp=2 dp=1 micro=2")
    tokens = np.array([2, 3, 5, 6, 7, 8])
    # Of six columns each rank has three; the last two rows stand in columns 3 to 5 and 1 to 5.
    by_column, at_random = (np.array(each) for each in ([1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 1]))
    for owners, explained in ((by_column, True), (at_random, False)):
        nll = Entry(np.ones(6), tokens, owners)
        assert (4 * 6 // 2 in explained_shares(case, 0, nll)) == explained


def test_a_table_may_have_all_answers_begin_in_one_column() -> None:
    case = parse("case/1 rows=8:11111111,5:00111,2:11 layers=1 sp=2 dp=1")
    # Prompts of one, two and one token end in the second of ten columns, of which each rank has
    # five. Else the last token of the second row would be in a column of the other rank.
    by_column, at_random = np.zeros((2, 15), int)
    by_column[4:8] = at_random[4:8] = at_random[12] = 1
    for owners, explained in ((by_column, True), (at_random, False)):
        nll = Entry(np.ones(15), np.arange(15), owners)
        assert (3 * 10 // 2 in explained_shares(case, 0, nll)) == explained


def test_what_was_generated_may_be_padded_as_a_whole_and_then_split() -> None:
    case = parse("case/1 rows=7:0000001,2:01,8:01111111,2:01 layers=1 sp=2 dp=1 micro=2")
    # A prompt of six and an answer of seven, of different rows: thirteen columns, and one more.
    # The answer of each row begins in the seventh column, which is the first of the second rank.
    owners = np.array([0] * 6 + [1] + [0, 1] + [0] + [1] * 7 + [0, 1])
    nll = Entry(np.ones(19), np.arange(19), owners)
    assert 4 * 14 // 2 in explained_shares(case, 0, nll)


def test_streams_may_be_packed_to_any_length() -> None:
    case = parse("case/1 rows=9:111101101,9:000000001,1:1 layers=1 sp=2 dp=1 micro=2")
    # Two streams, of 18 tokens and of one, of which each rank has so many places.
    for each in (9, 10, 12, 17):
        places = np.array([*range(18), 0])
        nll = Entry(np.ones(19), np.arange(19), places // each)
        assert is_cut_evenly(case, 0, nll, 2 * each)
        # A cut elsewhere is no cut into equal pieces, nor is all of it computed by both.
        assert not is_cut_evenly(case, 0, nll, 2 * each + 2)
        assert not is_cut_evenly(case, 0, nll, 2 * 18)
    # An early piece with a late one: ten places in four pieces, of which the last are padding.
    balanced = np.array([0, 1, 1, 0])[np.array([*range(18), 0]) // 5]
    assert is_cut_evenly(case, 0, Entry(np.ones(19), np.arange(19), balanced), 2 * 10)


def test_ranks_that_have_columns_here_and_there_have_no_table() -> None:
    case = parse("case/1 rows=8:11111111,8:00000001 layers=1 sp=2 dp=1")
    # Both computed two rows of eight, and each reports a front and a back of every row. Were
    # answers in one column, there would be fourteen, of which rank 0 had 0, 1, 6, 7, 12 and 13.
    nll = Entry(np.ones(16), np.arange(16), np.array([0, 0, 1, 1, 1, 1, 0, 0] * 2))
    assert 16 not in explained_shares(case, 0, nll)


def test_a_run_in_which_nothing_telling_was_examined_is_a_fault() -> None:
    blind, bare = oracle(), oracle()
    far_from_the_edge = np.array([0, 1, 2, 5])
    blind.put("nll", Entry(np.ones(4), far_from_the_edge))
    for key in (HEAD, NORM):
        bare.put(key, Entry(np.zeros(0)))
    for trace, why in (
        (blind, "no supervised label at a shard edge was examined"),
        (bare, "not one element of a gradient was examined"),
    ):
        comparison = judge(sent(CASE, trace, {}), against=(trace, trace))
        assert comparison.fault == Fault(kind=Kind.VACUOUS, summary=why)


def test_rows_of_one_token_each_are_no_reason_to_doubt_a_run() -> None:
    case = parse("case/1 rows=1:1,1:1,1:1 micro=3 sp=2")
    trace = reference(case, torch.float64)
    ranks = sent(case, trace, {})
    (nll,) = [f for f in ranks[0] if f.key == "nll"]
    # Each micro-batch puts its token on rank 0 and a pad on rank 1.
    every = replace(nll, values=np.zeros(3), tokens=np.arange(3), pads=0)
    none = replace(nll, values=np.zeros(0), tokens=np.arange(0), pads=3)
    moved = [[mine, *rank[1:]] for mine, rank in zip((every, none), ranks, strict=True)]
    assert judge(moved, case=case, against=(trace, trace)).verdict is Verdict.EQUAL


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
def test_no_budget_accepts_a_gradient_that_is_zero_doubled_or_negated(dtype: Dtype) -> None:
    case = parse(f"case/1 rows=9:000111111,7:1110111 layers=2 sp=2 dtype={dtype}")
    against = reference(case, torch.float64), reference(case, TORCH_DTYPES[dtype])
    baseline = against[1]
    assert judge(sent(case, baseline, {}), case=case, against=against).verdict is Verdict.EQUAL
    for key in [key for key in baseline if key.startswith("grad.")]:
        for factor in (0, 2, -1):
            ranks = sent(case, baseline, {key: times(factor)})
            comparison = judge(ranks, case=case, against=against)
            assert comparison.verdict is Verdict.DIVERGED
            assert [r.key for r in comparison.keys if r.wrong] == [key]


def in_bf16(noise: dict[str, float]) -> tuple[Case, tuple[Trace, Trace]]:
    """Eight gradients, and plain training that strays by such a share in every row of some."""
    case, exact, plain = replace(CASE, dtype="bf16"), oracle(), oracle()
    for i in range(8):
        for trace in (exact, plain):
            trace.put(f"grad.{i}", Entry(np.linspace(1.0, 2.0, 64).reshape(8, 8)))
    for key, share in noise.items():
        strayed = exact[key].values.copy()
        strayed.reshape(-1)[::8] *= 1 + share
        plain.put(key, replace(exact[key], values=strayed))
    return case, (exact, plain)


def test_an_error_that_no_element_shows_is_found_on_the_whole() -> None:
    case, against = in_bf16({f"grad.{i}": 0.02 for i in range(8)})
    for factor, verdict in ((1.01, Verdict.WITHIN), (1.05, Verdict.DIVERGED)):
        ranks = sent(case, against[1], {"grad.3": times(factor)})
        comparison = judge(ranks, case=case, against=against)
        assert comparison.verdict is verdict
    (wrong,) = [result for result in comparison.keys if result.wrong]
    # Each element is inside what one element is allowed: nearly all of them are named.
    assert wrong.key == "grad.3"
    assert 1 < wrong.used < 3
    assert wrong.wrong > 50


def test_a_gradient_that_is_nothing_but_rounding_is_not_counted_and_said_so() -> None:
    case, against = in_bf16({"grad.0": 1.0})
    comparison = judge(sent(case, against[1], {}), case=case, against=against)
    assert comparison.verdict.passed
    assert comparison.unjudged == ("grad.0",)
    whole = judge(sent(case, against[0], {}), case=case, against=(against[0], against[0]))
    assert comparison.elements == whole.elements - 64
    assert "grad.0: nothing but rounding" in explain(comparison)


@pytest.mark.parametrize(
    ("noise", "hidden"),
    [
        ({"grad.0": 1.0, "grad.1": 2.0, "grad.2": 1.0}, "grad.1 grad.0 grad.2"),
        ({"loss": 1.0}, "loss nll"),
        # None of them could be told from half of it.
        (dict.fromkeys(GRADIENTS, 0.35), " ".join(sorted(GRADIENTS))),
    ],
)
def test_where_plain_training_strays_too_far_nobody_is_judged_and_nobody_is_blamed(
    noise: dict[str, float], hidden: str
) -> None:
    case, against = in_bf16(noise)
    comparison = judge(sent(case, against[1], {}), case=case, against=against)
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert comparison.fault is None
    assert sorted(comparison.swallowed) == sorted(hidden.split())
    worst = comparison.swallowed[0]
    said = f"not judgeable in bf16: the rounding of plain training hides {worst}"
    assert comparison.reason == said
    assert f"  why     {said}\n" in explain(comparison)


def test_who_is_wrong_where_most_is_rounding_is_found_by_what_is_not() -> None:
    case, against = in_bf16({f"grad.{i}": 1.0 for i in range(3)})
    ranks = sent(case, against[1], {"grad.3": times(2.0)})
    comparison = judge(ranks, case=case, against=against)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.swallowed == ()


def test_who_computed_elsewhere_is_told_so_where_nobody_could_be_judged() -> None:
    case, against = in_bf16({"loss": 1.0})
    assembly = assemble(case, sent(case, against[1], {}))
    assert isinstance(assembly, Assembly)
    assembly.sent, assembly.idle = (ENOUGH, ENOUGH), (1,)
    comparison = compare(case, "planted", against[0], [against[1]], assembly)
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.VACUOUS


def test_a_comparison_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match=r"look at \.verdict"):
        bool(judged({}))


def test_a_run_is_as_good_as_its_worst_case_and_a_run_of_nothing_is_a_fault() -> None:
    assert Verdict.worst([]) is Verdict.FAULT
    assert Verdict.worst([Verdict.WITHIN, Verdict.EQUAL]) is Verdict.WITHIN
    assert Verdict.worst([Verdict.DIVERGED, Verdict.FAULT, Verdict.EQUAL]) is Verdict.DIVERGED
    assert [v for v in Verdict if v.passed] == [Verdict.EQUAL, Verdict.WITHIN]
