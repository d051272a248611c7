"""Cases that transformers' Trainer, or its wiring, cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import (
    context_parallel,
    micro_batches,
    replicas,
    whole,
)
from harness.case.stated import ALL_RANKS

token_mean = partial(context_parallel, average=whole)

LIMITS: dict[str, Limit] = {
    "padded": token_mean,
    "padded-alltoall": token_mean,
    "padded-to-cp": token_mean,
    "packed": token_mean,
    "replica": partial(context_parallel, average=replicas),
    "no-loss-kwargs": partial(context_parallel, average=micro_batches),
    "label-smoothing": token_mean,
    "loss-function": token_mean,
}
STATED = dict.fromkeys(LIMITS, f"dtype=fp32 window=none {ALL_RANKS}")
