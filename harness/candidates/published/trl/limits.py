"""Cases that trl's trainers, or their wiring, cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import context_parallel, replicas, whole
from harness.candidates.published.wiring.limits import OF_RECIPES, whole_pairs, within
from harness.case import Case
from harness.case.stated import ALL_RANKS

# A reward model has no head to tie.
OF_PAIRS = f"{OF_RECIPES} tied=0"
token_mean = partial(context_parallel, average=whole)


def pairs(case: Case) -> str | None:
    """Refuse what is no step of pairs."""
    return within(case, OF_PAIRS) or whole_pairs(case)


LIMITS: dict[str, Limit] = {
    "sft": token_mean,
    "sft-padding-free": token_mean,
    "sft-replica": partial(context_parallel, average=replicas),
    "sft-label-smoothing": token_mean,
    "reward": pairs,
    "dpo": pairs,
}
STATED = {
    **dict.fromkeys(LIMITS, f"dtype=fp32 window=none {ALL_RANKS}"),
    "reward": OF_PAIRS,
    "dpo": OF_PAIRS,
}
