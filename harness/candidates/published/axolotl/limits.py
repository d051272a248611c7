"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import averages, limits
from harness.candidates.published.wiring.averages import other_average
from harness.case import Case


def supervised(case: Case) -> str | None:
    """Refuse what entries with a loss of transformers cannot run."""
    return limits.transformers(case) or limits.first(
        not limits.all_have_targets(case)
        and "a micro-batch without targets: its mean is of nothing, on one rank as on many",
    )


def means(case: Case, *, refused: Limit = supervised) -> str | None:
    """Refuse losses other than the mean of the means of micro-batches."""
    return refused(case) or other_average(
        case, averages.micro_batches, "it averages means of micro-batches"
    )


def counted(case: Case) -> str | None:
    """Refuse losses other than the mean over the targets of a replica."""
    return supervised(case) or other_average(
        case, averages.replicas, "it averages over the tokens of a replica"
    )


def strided(case: Case) -> str | None:
    """Refuse an odd number of kv heads, of which two are sent at once."""
    return means(case) or limits.first(
        case.kv_heads % 2 != 0 and f"kv heads {case.kv_heads}: two of them are sent at once"
    )


def rewarded(case: Case) -> str | None:
    """Refuse micro-batches in which no row has tokens behind its prompt."""
    return limits.transformers(case) or limits.first(
        limits.any_has_only_single_tokens(case) and "a batch of one token: nothing is generated",
    )


def per_row(case: Case) -> str | None:
    """Refuse losses other than means of rows that are averaged by micro-batch, and then again."""
    sizes = {len(rows) for rows in limits.rows_by_micro_batch(case)}
    computes = {
        "row-mean": len(sizes) == 1,
        "micro-mean": sizes == {1},
        "token-mean": len(case.rows) == 1,
    }
    return rewarded(case) or limits.first(
        not computes[case.loss] and f"loss={case.loss}: it averages means of rows"
    )


LIMITS: dict[str, Limit] = {
    "packed": means,
    "packed-counted": counted,
    "packed-stride": strided,
    "packed-shifted": means,
    "packed-unpadded": means,
    "flattened": means,
    "padded": means,
    "padded-counted": counted,
    "padded-shifted": means,
    "grpo": partial(means, refused=rewarded),
    "grpo-rows": per_row,
}
STATED = dict.fromkeys(LIMITS, "dtype=fp32")
