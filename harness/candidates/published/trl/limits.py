"""Cases that trl's trainers, or their wiring, cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import context_parallel, replicas, whole
from harness.candidates.published.wiring.limits import OF_RECIPES, within
from harness.case.stated import ALL_RANKS

# A reward model has no head to tie.
OF_PAIRS = f"{OF_RECIPES} tied=0 group=2"
token_mean = partial(context_parallel, average=whole)


LIMITS: dict[str, Limit] = {
    "sft": token_mean,
    "sft-padding-free": token_mean,
    "sft-replica": partial(context_parallel, average=replicas),
    "sft-label-smoothing": token_mean,
    "reward": partial(within, limits=OF_PAIRS),
    "dpo": partial(within, limits=OF_PAIRS),
}
STATED = {
    **dict.fromkeys(LIMITS, f"dtype=fp32 window=none {ALL_RANKS}"),
    "reward": OF_PAIRS,
    "dpo": OF_PAIRS,
}
