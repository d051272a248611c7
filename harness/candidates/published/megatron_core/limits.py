"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import (
    averages_as_requested,
    micro_batches,
    whole,
)
from harness.candidates.published.wiring.limits import every_wiring, first
from harness.case import Case

# Flags of entries: the loss is divided by the tokens of all micro-batches; a further depth is
# trained; rows are dealt to ranks; all ranks are replicas.
PER_TOKEN, AHEAD, HYBRID, REPLICAS = 1, 2, 4, 8
NAMES = {
    "gpt": 0,
    "gpt-per-token": PER_TOKEN,
    "gpt-legacy": 0,
    "gpt-collective": 0,
    "gpt-overlap": PER_TOKEN,
    "gpt-sharded": PER_TOKEN,
    "packed": 0,
    "packed-per-token": PER_TOKEN,
    "packed-ends": PER_TOKEN,
    "mtp": AHEAD,
    "mtp-per-token": AHEAD | PER_TOKEN,
    "mtp-packed": AHEAD,
    "mtp-packed-per-token": AHEAD | PER_TOKEN,
    "mtp-packed-ends": AHEAD | PER_TOKEN,
    "hybrid": PER_TOKEN | HYBRID | REPLICAS,
    "hybrid-cp": PER_TOKEN | HYBRID,
    "mtp-hybrid": PER_TOKEN | HYBRID | REPLICAS | AHEAD,
}


def refused(case: Case, *, kind: int) -> str | None:
    """Refuse what an entry with these flags cannot run."""
    average = whole if kind & PER_TOKEN else micro_batches
    averages_otherwise = not averages_as_requested(case, average)
    return every_wiring(case) or first(
        case.dtype != "fp32" and f"dtype={case.dtype}: its losses and rotations are in fp32",
        case.window is not None and f"window={case.window}: attention is ours, and has none",
        case.checkpoint and "checkpoint=1: it forks random states of CUDA",
        averages_otherwise and f"loss={case.loss}: it averages over other tokens",
        bool(kind & AHEAD) and case.layers > 1 and f"layers={case.layers}: a depth has one",
        bool(kind & HYBRID)
        and case.dp > 1
        and f"dp={case.dp}: rows go to ranks of other replicas, which a case cannot say",
        bool(kind & REPLICAS)
        and len(case.rows) % case.ranks > 0
        and f"rows={len(case.rows)}: every rank loads as many",
    )


LIMITS: dict[str, Limit] = {name: partial(refused, kind=kind) for name, kind in NAMES.items()}
STATED = {
    name: "dtype=fp32 window=none checkpoint=0"
    + (" layers=1" if kind & AHEAD else "")
    + (" ranks=all dp=1" if kind & HYBRID else "")
    for name, kind in NAMES.items()
}
