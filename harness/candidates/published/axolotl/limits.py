"""What each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import limits
from harness.case import Case


def supervised(case: Case) -> str | None:
    """What entries with a loss of transformers refuse."""
    return limits.transformers(case) or limits.first(
        not limits.all_have_targets(case)
        and "a micro-batch without targets: its mean is of nothing, on one rank as on many",
    )


def means(case: Case, *, refused: Limit = supervised) -> str | None:
    """The trainer averages means of micro-batches."""
    computes = {
        "micro-mean": True,
        "token-mean": case.micro_batches == 1 and case.dp == 1,
        "row-mean": case.micro_batches * case.dp == len(case.rows),
    }
    return refused(case) or limits.first(
        not computes[case.loss] and f"loss={case.loss}: it averages means of micro-batches"
    )


def counted(case: Case) -> str | None:
    """The trainer divides by the targets of a replica."""
    computes = {
        "token-mean": case.dp == 1,
        "micro-mean": case.micro_batches == 1,
        "row-mean": len(case.rows) == case.dp,
    }
    return supervised(case) or limits.first(
        not computes[case.loss] and f"loss={case.loss}: it averages over the tokens of a replica"
    )


def strided(case: Case) -> str | None:
    return means(case) or limits.first(
        case.kv_heads % 2 != 0 and f"kv heads {case.kv_heads}: two of them are sent at once"
    )


def rewarded(case: Case) -> str | None:
    """In every micro-batch some row has tokens behind its prompt."""
    return limits.transformers(case) or limits.first(
        any(max(map(len, rows)) == 1 for rows in limits.rows_by_micro_batch(case))
        and "a batch of one token: nothing is generated",
    )


def per_row(case: Case) -> str | None:
    """The trainer averages means of rows, and then means of micro-batches."""
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
