"""What another project's suite asks of a sequence-parallel step, as a function of two traces."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.case import Case
from harness.trace import Trace

# accepts(case, plain training in the case's dtype, candidate).
Accepts = Callable[[Case, Trace, Trace], bool]


@dataclass(frozen=True, slots=True)
class Rival:
    """A published acceptance rule, with the shapes that its own test runs on.

    The rule asks only for keys that `needs` announces, and raises KeyError where one is missing.
    Where the original leaves a choice, it is the one that makes the suite look better.
    """

    name: str
    # "owner/name: path", as public on the day when it was read.
    source: str
    # Quantities and tolerances, in one sentence.
    compares: str
    # Keys of a trace; what ends in a dot stands for all keys that begin with it.
    needs: tuple[str, ...]
    accepts: Accepts
    shapes: tuple[Case, ...]
    # What is scaled down, replaced or left out, and why.
    note: str = ""
