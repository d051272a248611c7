"""What LLaMA-Factory, or its wiring, cannot do with a case."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import limits
from harness.case import Case


def trainer(case: Case) -> str | None:
    """What both batching strategies refuse."""
    return limits.transformers(case) or limits.first(
        case.loss != "token-mean" and f"loss={case.loss}: it averages over tokens",
        # A micro-batch in which no row is longer than one token.
        case.sp == 1
        and any(max(map(len, rows)) == 1 for rows in limits.rows_by_micro_batch(case))
        and "a batch of one token: nothing is left of it to predict, and on one rank that fails",
    )


def padded(case: Case) -> str | None:
    """Rows in a table."""
    return trainer(case) or limits.first(
        limits.any_is_padded_on_the_left(case) and "it pads on the right",
    )


LIMITS: dict[str, Limit] = {
    "padded": padded,
    "packed": trainer,
}
