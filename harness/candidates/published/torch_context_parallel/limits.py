"""Cases that each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import RING_DTYPES, decoder, first
from harness.case import Case

NAMES = ("balanced", "balanced-alltoall", "unbalanced", "unbalanced-alltoall")


def refused(case: Case) -> str | None:
    """Refuse what torch's ring cannot run."""
    return decoder(case, RING_DTYPES) or first(
        case.window is not None
        and f"window={case.window}: its ring has no mask but the causal one"
    )


LIMITS: dict[str, Limit] = dict.fromkeys(NAMES, refused)
STATED = dict.fromkeys(NAMES, "window=none")
