"""Cases that each entry refuses."""

from harness.candidates.published.axolotl import settings
from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import averages, limits
from harness.candidates.published.wiring.averages import other_average
from harness.candidates.published.wiring.limits import OF_RECIPES
from harness.case import Case
from harness.case.settings import as_limits
from harness.case.stated import ALL_RANKS


def packed(case: Case) -> str | None:
    """Refuse losses other than the mean of the means of replicas, and means of nothing."""
    return (
        limits.transformers(case)
        or nothing_to_average(case)
        or other_average(case, averages.replicas, "it averages over the tokens of a replica")
    )


def nothing_to_average(case: Case) -> str | None:
    return limits.first(
        any(
            not any(case.rows[row].supervised() for row in rows)
            for rows in averages.replicas(case)
        )
        and "a replica without targets: it divides by their number, on one rank too"
    )


def padded(case: Case) -> str | None:
    """Refuse padding on the left as well, which the library refuses."""
    return packed(case) or limits.first(
        limits.any_is_padded_on_the_left(case)
        and "side=left: it refuses masks that are not padded on the right"
    )


def heads_for_each_rank(case: Case) -> str | None:
    """Refuse fewer kv heads than ranks: then ranks form a ring, for which it refuses sdpa."""
    return limits.first(
        case.kv_heads % case.sp != 0
        and f"kv heads {case.kv_heads}: it refuses a ring of sdpa, which has no backward"
    )


def without_window(case: Case) -> str | None:
    """Refuse a window where the library refuses it."""
    return limits.first(
        case.window is not None and f"window={case.window}: it refuses a window for this schedule"
    )


def both(one: Limit, other: Limit) -> Limit:
    return lambda case: one(case) or other(case)


# Ulysses, sdpa and the losses of both compute in any dtype. Masks padded on the left are refused.
OF_ALL = f"{OF_RECIPES.replace('dtype=fp32', 'dtype=fp64,fp32')} kernel=sdpa side=right"
OF_PROCESS_REWARD = f"{OF_ALL} tied=0 {as_limits(settings.FAMILIES)} {as_limits(settings.CUTS)}"
OF_EBFT = f"{OF_ALL} group=2 {as_limits(settings.EBFT)}"


def of_trainer(case: Case, stated: str) -> str | None:
    """Refuse what no step of a recipe can run."""
    return limits.within(case, stated) or heads_for_each_rank(case)


def process_reward(case: Case) -> str | None:
    """Refuse means of nothing as well."""
    return of_trainer(case, OF_PROCESS_REWARD) or nothing_to_average(case)


def ebft(case: Case) -> str | None:
    """Refuse what is no pairs of answers to a prompt of one token."""
    return of_trainer(case, OF_EBFT) or limits.first(
        any(len(row) == 1 for row in case.rows) and "a row of one token: an empty answer"
    )


LIMITS: dict[str, Limit] = {
    "packed": packed,
    "packed-unpadded": packed,
    "packed-rows": packed,
    "packed-in-forward": packed,
    "packed-sdpa": both(packed, heads_for_each_rank),
    "packed-ring": packed,
    "packed-ring-distflash": both(packed, without_window),
    "flattened": packed,
    "padded": padded,
    "padded-in-forward": padded,
    "padded-sdpa": both(padded, heads_for_each_rank),
    "padded-ring": padded,
    "padded-ring-gather": padded,
    "padded-ring-alltoall": both(padded, without_window),
    "padded-ring-distflash": both(padded, without_window),
}
STATED = {
    **dict.fromkeys(LIMITS, f"dtype=fp32 {ALL_RANKS}"),
    "process-reward": f"{OF_PROCESS_REWARD}",
    "ebft": OF_EBFT,
}
LIMITS |= {"process-reward": process_reward, "ebft": ebft}
