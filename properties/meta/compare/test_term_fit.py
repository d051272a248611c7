"""How much of each term of a loss a step has too much is fitted from its gradients."""

import numpy as np
import pytest

from harness.compare.term_fit import fit_terms, with_terms
from harness.trace import Entry, Trace


def trace(**gradients: list[float]) -> Trace:
    made = Trace()
    made.put("loss", Entry(np.array(float(len(gradients)))))
    for name, values in gradients.items():
        made.put(f"grad.{name}", Entry(np.array(values)))
    return made


PLAIN = trace(a=[1.0, 2.0, 3.0], b=[4.0])
FIRST = trace(a=[1.0, 0.0, 0.0], b=[1e-6])
SECOND = trace(a=[0.0, 1e3, 0.0], b=[0.0])


def test_factors_are_those_with_which_terms_were_added() -> None:
    got = with_terms(PLAIN, [FIRST, SECOND], [0.25, -3.0])
    assert got["grad.a"].values.tolist() == [1.25, -2998.0, 3.0]
    assert got["loss"].values == 2 - 2.75 * 2
    assert fit_terms(PLAIN, got, [FIRST, SECOND]) == pytest.approx([0.25, -3.0], rel=1e-12)


@pytest.mark.parametrize(
    ("terms", "got"),
    [
        ([FIRST, FIRST], PLAIN),
        ([trace(a=[0.0, 0.0, 0.0], b=[0.0])], PLAIN),
        ([trace(a=[1.0, 2.0, 3.0])], PLAIN),
        ([trace(a=[1.0], b=[1.0])], PLAIN),
        ([trace(a=[float("nan"), 0.0, 0.0], b=[0.0])], PLAIN),
        ([FIRST], trace(a=[float("inf"), 2.0, 3.0], b=[4.0])),
    ],
    ids=["alike", "zero", "missing", "shape", "nan", "infinite"],
)
def test_terms_that_cannot_be_told_apart_or_added_have_no_factors(
    terms: list[Trace], got: Trace
) -> None:
    assert fit_terms(PLAIN, got, terms) is None
