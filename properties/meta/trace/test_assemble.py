"""Fragments of all ranks become one trace; misfits and malformed fragments are found."""

from typing import Any

import numpy as np
import pytest

from harness.case import parse
from harness.trace import Assembly, Fault, Fragment, Kind, Misfit, MisfitKind, assemble, digest

CASE = parse("case/1 rows=2:11,2:11 sp=2")


def piece(key: str, values: Any, tokens: list[int] | None = None) -> Fragment:
    array = np.asarray(values)
    if tokens is None:
        return Fragment(key, array, digest=digest(array))
    return Fragment(key, array, np.array(tokens, np.int64))


def assembled(*ranks: list[Fragment]) -> Assembly:
    assembly = assemble(CASE, ranks)
    assert isinstance(assembly, Assembly)
    return assembly


def test_rows_are_joined_in_token_order_with_their_owners() -> None:
    assembly = assembled(
        [piece("nll", [30.0, 0.0], [3, 0])],
        [Fragment("nll", np.array([20.0]), np.array([2]), pads=1), piece("nll", [10.0], [1])],
    )
    entry = assembly.trace["nll"]
    assert entry.tokens is not None
    assert entry.owners is not None
    assert entry.values.tolist() == [0.0, 10.0, 20.0, 30.0]
    assert (entry.tokens.tolist(), entry.owners.tolist()) == ([0, 1, 2, 3], [0, 1, 1, 0])
    assert (assembly.misfits, assembly.local_rows) == ([], (2, 3))


def test_a_token_that_no_rank_reports_is_lost() -> None:
    assembly = assembled([piece("q", [[0.0], [1.0]], [0, 1])], [piece("q", [[3.0]], [3])])
    assert assembly.misfits == [Misfit(MisfitKind.LOST, "q", (2,))]


def test_a_token_that_two_ranks_report_is_owned_twice() -> None:
    assembly = assembled(
        [piece("nll", [0.0, 1.0], [0, 1])], [piece("nll", [1.0, 2.0, 3.0], [1, 2, 3])]
    )
    assert assembly.misfits == [Misfit(MisfitKind.TWICE, "nll", (1,), (0, 1))]
    assert assembly.trace["nll"].values.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(("other", "misfits"), [(1.0, 0), (5.0, 1)])
def test_several_ranks_may_emit_the_same_rows_of_a_metric_if_they_are_equal(
    other: float, misfits: int
) -> None:
    first, second = ([0.0, x, 2.0, 3.0] for x in (1.0, other))
    assembly = assembled(*([piece("metric.kl", x, [0, 1, 2, 3])] for x in (first, second)))
    assert len(assembly.misfits) == misfits
    assert assembly.trace["metric.kl"].values.tolist() == first


def misfits_of(*ranks: list[Any]) -> list[Misfit]:
    """Return the misfits of replicas, given the copies that each rank emits."""
    return assembled(*([piece("x", copy) for copy in copies] for copies in ranks)).misfits


def test_replicas_must_be_equal_in_every_bit_but_the_sign_of_zeros() -> None:
    assert misfits_of([np.nan], [np.nan]) == []
    assert misfits_of([[[1.0, 0.0]]], [[[1.0, -0.0]]]) == []
    (misfit,) = misfits_of([[[1.0, 0.0, 2.0]]], [[[1.0, -0.0, np.nextafter(2.0, 3.0)]]])
    assert (misfit.kind, misfit.key, misfit.ranks) == (MisfitKind.SPLIT, "x", (1,))
    assert misfit.detail == "at [0, 2] rank 0 holds 2.0, rank 1 2.0000000000000004"
    (misfit,) = misfits_of([2.5], [3.0])
    assert misfit.detail == "rank 0 holds 2.5, rank 1 3.0"


def test_replicas_of_different_shapes_or_types_differ() -> None:
    for other in (np.ones(1), np.ones(2, np.float32), np.ones(2, int)):
        (misfit,) = misfits_of([np.ones(2)], [other])
        assert (misfit.kind, misfit.ranks) == (MisfitKind.SPLIT, (1,))


def test_replicas_that_are_emitted_for_every_micro_batch_are_compared_one_by_one() -> None:
    assert misfits_of([1.0, 2.0], [1.0, 2.0]) == []
    assert [misfit.ranks for misfit in misfits_of([1.0, 2.0], [1.0, 1.0])] == [(1,)]


@pytest.mark.parametrize(
    ("ranks", "summary"),
    [
        (
            [[piece("loss", 1.0)], []],
            "rank 1: key 'loss': required, and never emitted",
        ),
        (
            [[piece("loss", 1.0)], [piece("loss", 1.0), piece("loss", 1.0)]],
            "key 'loss': emitted more than once on a rank",
        ),
        (
            [[piece("q", [1.0], [0])], [piece("q", [1.0])]],
            "key 'q': some ranks gave tokens and some did not",
        ),
        (
            [[piece("q", [1.0], [0])], [piece("q", [1.0], [4])]],
            "rank 1: key 'q': a token number outside 0..3",
        ),
        (
            [[piece("q", [[1.0]], [0])], [piece("q", [[1.0, 2.0]], [1])]],
            "rank 1: key 'q': rows of shape (2,) beside others",
        ),
        (
            [[Fragment("x", None, digest="d")], [Fragment("x", None, digest="d")]],
            "key 'x': no rank sent the values",
        ),
    ],
)
def test_a_malformed_fragment_is_a_fault(ranks: list[list[Fragment]], summary: str) -> None:
    fault = assemble(CASE, ranks)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.summary) == (Kind.FRAGMENT, summary)
