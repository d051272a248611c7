"""What LLaMA-Factory, or its wiring, cannot do with a case."""

from collections.abc import Iterator

from harness.candidates.published import Limit
from harness.candidates.wiring import limits
from harness.case import Case, Row


def trainer(case: Case) -> str | None:
    """Of both batching strategies."""
    return limits.transformers(case) or limits.first(
        case.loss != "token-mean" and f"loss={case.loss}: it averages over tokens",
        # The widest of a table and all of a stream.
        case.sp == 1
        and any(max(map(len, rows)) == 1 for rows in micro_batches(case))
        and "a batch of one token: nothing is left of it to predict, and on one rank that fails",
    )


def padded(case: Case) -> str | None:
    """Rows in a table."""
    return trainer(case) or limits.first(
        any(map(padded_on_the_left, micro_batches(case))) and "it pads on the right",
    )


def padded_on_the_left(rows: tuple[Row, ...]) -> bool:
    """Whether padding stands before some row."""
    longest = max(map(len, rows))
    return any(row.side == "left" and len(row) < longest for row in rows)


def micro_batches(case: Case) -> Iterator[tuple[Row, ...]]:
    """The rows of each, over all replicas."""
    for replica in range(case.dp):
        rows = case.rows[replica :: case.dp]
        share, larger = divmod(len(rows), case.micro_batches)
        start = 0
        for i in range(case.micro_batches):
            size = share + (i < larger)
            yield rows[start : start + size]
            start += size


LIMITS: dict[str, Limit] = {
    "padded": padded,
    "packed": trainer,
}
