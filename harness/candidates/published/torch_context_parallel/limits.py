"""What each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import decoder, first
from harness.case import Case

# Partial results are merged in fp32 whatever they are given in.
DTYPES = ("fp32", "bf16")
NAMES = ("balanced", "balanced-alltoall", "unbalanced", "unbalanced-alltoall")


def refused(case: Case) -> str | None:
    return decoder(case, DTYPES) or first(
        case.window is not None
        and f"window={case.window}: its ring has no mask but the causal one"
    )


LIMITS: dict[str, Limit] = dict.fromkeys(NAMES, refused)
STATED = dict.fromkeys(NAMES, "window=none")
