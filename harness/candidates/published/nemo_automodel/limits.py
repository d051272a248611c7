"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.nemo_automodel.settings import (
    BALANCED,
    DISTILLED,
    ENGINE,
    OF_DISTILLING,
)
from harness.candidates.published.wiring.averages import other_average, whole
from harness.candidates.published.wiring.limits import (
    OF_RECIPES,
    dealt,
    first,
    transformers,
    within,
)
from harness.case import Case
from harness.case.settings import as_limits


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


def beyond(case: Case, stated: str) -> str | None:
    """Refuse what no entry with a recipe runs."""
    return within(case, stated) or first(
        len(case.rows) // case.dp < case.micro_batches
        and "micro: a replica has fewer rows than micro-batches"
    )


# The recipes make micro-batches themselves.
OF_STEPS = OF_RECIPES.replace(" micro=1", "").replace("dtype=fp32", "dtype=fp64,fp32")
OF_ENTRIES = {
    **dict.fromkeys(
        ("kd", "kd-vlm"), f"{OF_STEPS} {as_limits(DISTILLED)} {as_limits(OF_DISTILLING)}"
    ),
    # The library refuses tied heads for models of experts.
    "balanced": f"{OF_STEPS} tied=0 {as_limits(BALANCED)} {as_limits(ENGINE)}",
}
RINGS = ("masked", "masked-hf", "chunked", "chunked-hsdp", "compiled", "embedded", "validation")
PACKED = ("packed", "packed-flash", "packed-halo", "packed-a2a")
LIMITS: dict[str, Limit] = {
    **dict.fromkeys(RINGS, counted),
    **dict.fromkeys(PACKED, packed),
    **{key: partial(beyond, stated=stated) for key, stated in OF_ENTRIES.items()},
}
STATED = {
    **dict.fromkeys(RINGS, "dtype=fp32"),
    **dict.fromkeys(PACKED, "dtype=fp32 window=none"),
    **OF_ENTRIES,
}
