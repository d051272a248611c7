"""Cases that each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import RING_DTYPES, decoder, first, has_targets
from harness.case import Case

NAMES = ("headtail", "unbalanced")


def refused(case: Case) -> str | None:
    """Refuse what its ring cannot run, and losses other than a mean over all tokens."""
    return decoder(case, RING_DTYPES) or first(
        case.window is not None and f"window={case.window}: its attention is causal and no more",
        not has_targets(case)
        and "no target in the batch: its trainer raises where a loss is not finite",
        case.loss != "token-mean" and f"loss={case.loss}: it divides by the tokens of all ranks",
    )


LIMITS: dict[str, Limit] = dict.fromkeys(NAMES, refused)
STATED = dict.fromkeys(NAMES, "window=none loss=token-mean")
