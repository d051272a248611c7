"""What a candidate is compared with: our model's plain training, or its own step at sp 1."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

from harness.case import Case

Against = Literal["plain", "self"]
PLAIN: Final = "plain"
ITSELF: Final = "self"
# In the middle of a sentence.
NAMES: Final = {PLAIN: "plain training", ITSELF: "its own step at sp 1, dp 1 and one micro-batch"}
AGAINST_ITSELF = f"compared with {NAMES[ITSELF]}: what is wrong there as well does not show here"
IS_KEPT = (
    "cases of micro-mean over several steps are compared with it at sp 1 and as many replicas and "
    "micro-batches as they have: a factor of these does not show there"
)
_ORACLE = ContextVar("oracle", default=False)


def is_kept(case: Case) -> bool:
    """Whether the own step at sp 1 needs the replicas and micro-batches of the case.

    Means over them become one by running each alone, but weights change between two steps.
    """
    return case.loss == "micro-mean" and case.steps > 1


def where_alone(case: Case) -> str:
    """At which sizes the own step is the reference of a case."""
    if is_kept(case):
        return (
            f"at sp 1 with dp={case.dp} and micro={case.micro_batches} as here, because a "
            f"micro-mean over {case.steps} steps cannot be taken apart"
        )
    parts = case.dp * case.micro_batches
    if case.loss == "micro-mean" and parts > 1:
        return f"at sp 1, the mean of {parts} runs of one micro-batch each"
    return "at sp 1, dp 1 and one micro-batch"


def reference_name(case: Case, against: Against) -> str:
    """What a case is compared with, in the middle of a sentence."""
    return NAMES[PLAIN] if against == PLAIN else f"its own step {where_alone(case)}"


def asked_for_an_oracle() -> bool:
    """Whether a candidate is asked for what its own step is compared with, always in fp64."""
    return _ORACLE.get()


@contextmanager
def asking(*, oracle: bool) -> Iterator[None]:
    token = _ORACLE.set(oracle)
    try:
        yield
    finally:
        _ORACLE.reset(token)
