"""What each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import decoder, first
from harness.case import Case

# The ring merges partial results in fp32, whatever their dtype.
DTYPES = ("fp32", "bf16")
NAMES = ("headtail", "unbalanced")


def refused(case: Case) -> str | None:
    return decoder(case, DTYPES) or first(
        case.window is not None and f"window={case.window}: its attention is causal and no more",
        not any(row.supervised() for row in case.rows)
        and "no target in the batch: its trainer raises where a loss is not finite",
        case.loss != "token-mean" and f"loss={case.loss}: it divides by the tokens of all ranks",
    )


LIMITS: dict[str, Limit] = dict.fromkeys(NAMES, refused)
STATED = dict.fromkeys(NAMES, "window=none loss=token-mean")
