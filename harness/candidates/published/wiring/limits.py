"""Cases that wirings of one kind refuse, as arithmetic on the case.

A limit returns None for a case that it accepts, otherwise the reason.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd

from harness.against import RECIPE_LIMITS
from harness.case import Case, Row
from harness.case.stated import ALL_RANKS, violated_limit

# What steps of recipes have in common that run a Llama of transformers, whose norms are fp32.
OF_RECIPES = (
    f"dtype=fp32 {RECIPE_LIMITS} {ALL_RANKS} window=none model=llama micro=1 checkpoint=0 mixed=0 "
    "compiled=0 wrapper=none sync=last kernel=eager,sdpa"
)
ALL_DTYPES = ("fp64", "fp32", "bf16")
# A ring merges partial results in fp32, whatever their dtype.
RING_DTYPES = ("fp32", "bf16")


def first(*reasons: str | bool) -> str | None:
    """Return the first reason that holds; each is `condition and "reason"`."""
    return next((str(reason) for reason in reasons if reason), None)


def within(case: Case, limits: str) -> str | None:
    """Refuse what is outside stated limits."""
    limit = violated_limit(case, limits, case.ranks)
    return f"its limits are {limit}" if limit else None


def dealt(case: Case, replica: int) -> list[range]:
    """Return the row numbers of each micro-batch of a replica; larger micro-batches come first."""
    rows = range(replica, len(case.rows), case.dp)
    share, larger = divmod(len(rows), case.micro_batches)
    starts = [share * number + min(number, larger) for number in range(case.micro_batches + 1)]
    return [rows[start:end] for start, end in pairwise(starts)]


def rows_by_micro_batch(case: Case) -> Iterator[tuple[Row, ...]]:
    """Yield the rows of each micro-batch, replica by replica."""
    for replica in range(case.dp):
        for rows in dealt(case, replica):
            yield tuple(case.rows[row] for row in rows)


def has_targets(case: Case) -> bool:
    """Whether any row has a target."""
    return any(row.supervised() for row in case.rows)


def all_have_targets(case: Case) -> bool:
    """Whether every micro-batch has a target."""
    return all(any(row.supervised() for row in rows) for rows in rows_by_micro_batch(case))


def any_has_only_single_tokens(case: Case) -> bool:
    """Whether in some micro-batch no row is longer than one token."""
    return any(max(map(len, rows)) == 1 for rows in rows_by_micro_batch(case))


def any_is_padded_on_the_left(case: Case) -> bool:
    """Whether some micro-batch has padding before a row."""
    return any(
        row.side == "left" and len(row) < max(map(len, rows))
        for rows in rows_by_micro_batch(case)
        for row in rows
    )


def ulysses_ranks(case: Case) -> int:
    """Return how many ranks can share the kv heads; groups of so many ranks form a ring."""
    return gcd(case.kv_heads, case.sp)


def every_wiring(case: Case) -> str | None:
    """Refuse what no wiring supports, because the library does it or nothing wraps its step."""
    return first(
        case.wrapper != "none" and f"wrapper={case.wrapper}: the library reduces by itself",
        case.sync != "last" and f"sync={case.sync}: gradients are reduced once, at the end",
        case.compiled and "compiled=1: not wired",
        case.mixed and "mixed=1: not wired",
        case.kernel in ("varlen", "flash") and f"kernel={case.kernel}: the library has its own",
    )


def transformers(case: Case, dtypes: Sequence[str] = ("fp32",)) -> str | None:
    """Refuse what a transformers model cannot run: its norms, rotations and softmaxes are fp32."""
    return every_wiring(case) or first(
        case.dtype not in dtypes and f"dtype={case.dtype}: its model computes in fp32 in places",
        case.window is not None
        and case.model != "llama"
        and f"model={case.model} window={case.window}: the window is wired for Mistral only",
    )


def decoder(case: Case, dtypes: Sequence[str] = ("fp64", "fp32")) -> str | None:
    """Refuse what the harness's own model cannot run around a library's attention."""
    return every_wiring(case) or first(
        case.dtype not in dtypes and f"dtype={case.dtype}: not wired"
    )
