"""What every wiring of its kind refuses, as arithmetic on the case."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.case import Case, Row


def first(*reasons: str | bool) -> str | None:
    """The first reason that there is, where each is `condition and "reason"`."""
    return next((str(reason) for reason in reasons if reason), None)


def dealt(case: Case, replica: int) -> list[range]:
    """The rows of each micro-batch of a replica; larger ones come first."""
    rows = range(replica, len(case.rows), case.dp)
    share, larger = divmod(len(rows), case.micro_batches)
    starts = [share * number + min(number, larger) for number in range(case.micro_batches + 1)]
    return [rows[start:end] for start, end in pairwise(starts)]


def rows_by_micro_batch(case: Case) -> Iterator[tuple[Row, ...]]:
    """The rows of each micro-batch, replica by replica."""
    for replica in range(case.dp):
        for rows in dealt(case, replica):
            yield tuple(case.rows[row] for row in rows)


def all_have_targets(case: Case) -> bool:
    """Whether in every micro-batch there is something to learn."""
    return all(any(row.supervised() for row in rows) for rows in rows_by_micro_batch(case))


def any_is_padded_on_the_left(case: Case) -> bool:
    """Whether in some micro-batch padding stands before a row."""
    return any(
        row.side == "left" and len(row) < max(map(len, rows))
        for rows in rows_by_micro_batch(case)
        for row in rows
    )


def around(case: Case) -> str | None:
    """What every wiring refuses, because nothing else goes around its step."""
    return first(
        case.wrapper != "none" and f"wrapper={case.wrapper}: the library reduces by itself",
        case.sync != "last" and f"sync={case.sync}: gradients are reduced once, at the end",
        case.compiled and "compiled=1: not wired",
        case.mixed and "mixed=1: not wired",
        case.kernel in ("varlen", "flash") and f"kernel={case.kernel}: the library has its own",
    )


def transformers(case: Case, dtypes: Sequence[str] = ("fp32",)) -> str | None:
    """A transformers model, whose norms, rotations and softmaxes are in fp32."""
    return around(case) or first(
        case.dtype not in dtypes and f"dtype={case.dtype}: its model computes in fp32 in places",
        case.window is not None
        and case.model != "llama"
        and f"model={case.model} window={case.window}: the window is wired for Mistral only",
    )


def decoder(case: Case, dtypes: Sequence[str] = ("fp64", "fp32")) -> str | None:
    """The harness's own model around the library's attention."""
    return around(case) or first(
        case.dtype not in dtypes and f"dtype={case.dtype}: not wired",
    )
