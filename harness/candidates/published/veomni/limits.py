"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.veomni.settings import (
    DPO,
    FAMILIES,
    LONGEST,
    SUPERVISED,
    TRAINING,
)
from harness.candidates.published.wiring.limits import (
    ALL_DTYPES,
    OF_RECIPES,
    all_have_targets,
    decoder,
    first,
    rows_by_micro_batch,
    within,
)
from harness.case import Case
from harness.case.settings import as_limits
from harness.case.stated import ALL_RANKS

gathered = partial(decoder, dtypes=ALL_DTYPES)


def trained(case: Case) -> str | None:
    """Refuse losses that its trainer does not compute."""
    return gathered(case) or first(
        case.loss == "row-mean" and "loss=row-mean: its trainer averages over tokens",
        # On one rank the library skips the reduction that guards against NaN.
        case.sp == 1
        and not all_have_targets(case)
        and "sp=1: the log of a micro-batch without targets is NaN, as torch's mean of nothing is",
    )


def longer(case: Case) -> str | None:
    """Refuse micro-batches that are longer than they are padded to."""
    return first(
        ("pad_to_length", "true") in case.settings
        and any(sum(map(len, rows)) > LONGEST for rows in rows_by_micro_batch(case))
        and f"pad_to_length: a micro-batch of more than {LONGEST} tokens"
    )


def pairs(case: Case, stated: str) -> str | None:
    """Refuse what is no pairs of answers, and settings that do not go together."""
    chosen = dict(case.settings)
    return (
        within(case, stated)
        or longer(case)
        or first(
            chosen.get("loss_type") == "ipo"
            and chosen.get("label_smoothing") != "0.0"
            and "label_smoothing: not of this loss",
            chosen.get("pad_to_length") == "true"
            and case.sp == 1
            and "pad_to_length: on one rank it takes padding for a row, and raises",
        )
    )


def texts(case: Case, stated: str) -> str | None:
    """Refuse what its trainer cannot run, or does otherwise on one rank too."""
    return (
        within(case, stated)
        or longer(case)
        or first(
            len(case.rows) // case.dp < case.micro_batches
            and "micro: a replica has fewer rows than micro-batches",
            case.sp == 1
            and not all_have_targets(case)
            and "sp=1: the mean of a micro-batch without targets is NaN",
        )
    )


def balanced(case: Case) -> str | None:
    """Refuse what its balance of experts counts on one rank too, and where it raises."""
    return texts(case, OF_BALANCED) or first(
        ("pad_to_length", "true") in case.settings
        and "pad_to_length: padding counts as tokens, on one rank too",
        case.layers % case.sp != 0
        and "layers: its ranks must divide them, else the sizes of mask and experts differ",
    )


# The trainers make micro-batches themselves.
_OF_TRAINERS = OF_RECIPES.replace("dtype=fp32", "dtype=fp64,fp32").replace(" micro=1", "")
# With a tied head tokens are nearly certain, and rounding of one row hides the other of a pair.
OF_PAIRS = f"{_OF_TRAINERS} micro=1 tied=0 group=2 targets=some {as_limits({**DPO, **TRAINING})}"
OF_TEXTS = f"{_OF_TRAINERS} {as_limits({**FAMILIES, **SUPERVISED})}"
OF_BALANCED = f"{_OF_TRAINERS} micro=1 dp=1 {as_limits(SUPERVISED)}"
LIMITS: dict[str, Limit] = {
    "ulysses": trained,
    "gather": gathered,
    "dpo": partial(pairs, stated=OF_PAIRS),
    "sft": partial(texts, stated=OF_TEXTS),
    "sft-balanced": balanced,
}
STATED = dict.fromkeys(("ulysses", "gather"), ALL_RANKS) | {
    "dpo": OF_PAIRS,
    "sft": OF_TEXTS,
    "sft-balanced": OF_BALANCED,
}
