"""The comparisons that relations use, on traces made by hand."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from harness.compare import agree, identical, total
from harness.trace import Entry, Trace


def trace(**changes: Entry) -> Trace:
    entries = {
        "nll": Entry(np.array([1.0, 2.0, 0.5]), np.array([0, 1, 4]), np.array([0, 0, 1])),
        "loss": Entry(np.array(1.25)),
        "grad.head": Entry(np.array([[1.0, -2.0], [0.0, 4.0]])),
        **{name.replace("_", "."): entry for name, entry in changes.items()},
    }
    made = Trace()
    for key, entry in entries.items():
        made.put(key, entry)
    return made


def head(*values: float) -> Trace:
    return trace(grad_head=Entry(np.array(values).reshape(2, 2)))


def test_traces_that_differ_by_rounding_agree_and_are_not_identical() -> None:
    assert agree(trace(), head(1, -2 - 1e-13, 0, 4)) == ""
    message = identical(trace(), head(1, -2 - 1e-13, 0, 4))
    assert message == "grad.head: 1 of 4 elements are not identical"


def test_traces_that_differ_by_more_than_rounding_do_not_agree() -> None:
    assert agree(trace(), head(1, -2 - 1e-11, 0, 4)) == "grad.head: 1 of 4 elements differ"


def test_zeros_are_identical_whatever_their_sign() -> None:
    assert identical(trace(), head(1, -2, -0.0, 4)) == ""


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_agree_with_nothing_not_even_themselves(value: float) -> None:
    wild = head(1, -2, value, 4)
    assert agree(wild, wild) == agree(wild, trace()) == "grad.head: not finite"
    assert agree(trace(), wild) == "grad.head: 1 of 4 elements differ"
    assert bool(identical(wild, wild)) == np.isnan(value)


@pytest.mark.parametrize("same", [agree, identical])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (trace().only(["loss", "nll"]), "only one of them has grad.head"),
        (trace(loss=Entry(np.array([1.25]))), "loss: shapes () and (1,)"),
        (trace().renumbered({0: 0, 1: 1, 5: 4}), "nll: rows of different tokens"),
        (trace(nll=Entry(np.array([1.0, 2.0, 0.5]))), "nll: rows of different tokens"),
    ],
)
def test_traces_with_other_keys_shapes_or_tokens_do_not_match(
    same: Callable[[Trace, Trace], str], other: Trace, message: str
) -> None:
    assert same(trace(), other) == message
    assert same(other, trace()).startswith(message[:5])


def test_a_total_leaves_out_tensors_with_tokens() -> None:
    together = total([head(1, 1, 1, 1), head(3, 1, -1, 2)], 0.5)
    assert list(together) == ["loss", "grad.head"]
    assert together["grad.head"].values.tolist() == [[2, 1], [0, 1.5]]


@pytest.mark.parametrize(
    ("origins", "numbers", "losses", "owners"),
    [
        ({4: 0, 0: 4}, [0, 4], [0.5, 1.0], [1, 0]),
        ({7: 1, 8: 1}, [7, 8], [2.0, 2.0], [0, 0]),
        ({0: 3, 1: 4}, [1], [0.5], [1]),
        ({}, [], [], []),
    ],
)
def test_renumbering_may_swap_copy_and_leave_out_tokens(
    origins: Mapping[int, int], numbers: list[int], losses: list[float], owners: list[int]
) -> None:
    moved = trace().renumbered(origins)
    nll = moved["nll"]
    assert listed(nll.tokens) == numbers
    assert listed(nll.values) == losses
    assert listed(nll.owners) == owners
    assert moved["loss"] is not None
    assert identical(moved.only(["grad.head"]), trace().only(["grad.head"])) == ""


def listed(values: npt.NDArray[np.generic] | None) -> list[object]:
    assert values is not None
    return list(values.tolist())
