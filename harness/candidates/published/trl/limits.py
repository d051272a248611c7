"""Cases that trl's SFTTrainer, or its wiring, cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import context_parallel, replicas, whole
from harness.case.stated import ALL_RANKS

token_mean = partial(context_parallel, average=whole)

LIMITS: dict[str, Limit] = {
    "sft": token_mean,
    "sft-padding-free": token_mean,
    "sft-replica": partial(context_parallel, average=replicas),
    "sft-label-smoothing": token_mean,
}
STATED = dict.fromkeys(LIMITS, f"dtype=fp32 window=none {ALL_RANKS}")
