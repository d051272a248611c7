"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import ALL_DTYPES, all_have_targets, decoder, first
from harness.case import Case
from harness.case.stated import ALL_RANKS

gathered = partial(decoder, dtypes=ALL_DTYPES)


def trained(case: Case) -> str | None:
    """Refuse losses that its trainer does not compute."""
    return gathered(case) or first(
        case.loss == "row-mean" and "loss=row-mean: its trainer averages over tokens",
        # On one rank the library skips the reduction that guards against NaN.
        case.sp == 1
        and not all_have_targets(case)
        and "sp=1: the log of a micro-batch without targets is NaN, as torch's mean of nothing is",
    )


LIMITS: dict[str, Limit] = {"ulysses": trained, "gather": gathered}
STATED = dict.fromkeys(LIMITS, ALL_RANKS)
