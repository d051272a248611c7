"""Cases that each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import other_average, whole
from harness.candidates.published.wiring.limits import dealt, first, transformers
from harness.case import Case


def counted(case: Case) -> str | None:
    """Refuse losses other than a mean over the targets of all micro-batches and replicas."""
    return transformers(case) or other_average(
        case, whole, "it averages over the targets of all ranks"
    )


def packed(case: Case) -> str | None:
    """Refuse packed rows whose ranks would share nothing, and windows."""
    streams = [
        [sum(len(case.rows[row]) for row in rows) for rows in dealt(case, replica)]
        for replica in range(case.dp)
    ]
    # All packs are as long as the longest, padded to an even piece for each rank.
    piece = 2 * -(-max(map(max, streams)) // (2 * case.sp))
    return counted(case) or first(
        case.window is not None and f"window={case.window}: models that it is for have none",
        case.sp > 1
        and min(map(max, streams)) <= piece
        and "a replica whose packs all end in the first rank's piece: nothing is shared",
    )


RINGS = ("masked", "masked-hf", "chunked", "chunked-hsdp", "compiled", "embedded", "validation")
PACKED = ("packed", "packed-flash", "packed-halo", "packed-a2a")
LIMITS: dict[str, Limit] = {**dict.fromkeys(RINGS, counted), **dict.fromkeys(PACKED, packed)}
STATED = {
    **dict.fromkeys(RINGS, "dtype=fp32"),
    **dict.fromkeys(PACKED, "dtype=fp32 window=none"),
}
