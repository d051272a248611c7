"""How much of each term of a loss a step has too much is fitted from its gradients or its loss."""

import math

import numpy as np
import pytest

from harness.compare.term_fit import fit_terms, losses_by_metric, with_terms
from harness.trace import METRIC, Entry, Trace


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


def values(**of: float) -> Trace:
    trace = Trace()
    for key, value in of.items():
        trace.put("loss" if key == "loss" else f"{METRIC}{key}", Entry(np.array(value)))
    return trace


REPORTED = [values(loss=3.0, kl=1.0), values(loss=5.0, kl=2.0)]


def test_a_loss_that_is_off_by_as_many_times_what_a_metric_is_off_is_predicted() -> None:
    step = [values(loss=3.2, kl=1.4), values(loss=5.1, kl=2.2)]
    losses = losses_by_metric(f"{METRIC}kl", list(zip(REPORTED, step, strict=True)))
    assert losses is not None
    assert [float(loss.values) for loss in losses] == pytest.approx([3.2, 5.1])


@pytest.mark.parametrize(
    ("plain", "step"),
    [
        pytest.param(
            REPORTED, [values(loss=3.2, kl=1.4), values(loss=5.0, kl=2.0)], id="right in one case"
        ),
        pytest.param(
            REPORTED, [values(loss=3.0, kl=1.4), values(loss=5.0, kl=2.2)], id="for the log alone"
        ),
        pytest.param(REPORTED, [values(loss=3.2), values(loss=5.1)], id="not reported"),
        pytest.param(
            REPORTED, [values(loss=3.2, kl=math.nan), values(loss=5.1, kl=2.2)], id="not a number"
        ),
        pytest.param(
            [values(loss=3.0, kl=1.0), values(loss=6.0, kl=2.0)],
            [values(loss=4.2, kl=1.4), values(loss=6.6, kl=2.2)],
            id="all of the loss",
        ),
    ],
)
def test_no_loss_is_predicted_by_a_metric_that_says_nothing(
    plain: list[Trace], step: list[Trace]
) -> None:
    assert losses_by_metric(f"{METRIC}kl", list(zip(plain, step, strict=True))) is None


def test_two_terms_that_are_both_wrong_predict_another_loss_than_the_steps() -> None:
    step = [values(loss=3.2, kl=1.4), values(loss=5.9, kl=2.2)]
    losses = losses_by_metric(f"{METRIC}kl", list(zip(REPORTED, step, strict=True)))
    assert losses is not None
    assert float(losses[1].values) != pytest.approx(5.9, abs=0.1)
