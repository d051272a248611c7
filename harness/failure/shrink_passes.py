"""The passes of shrinking: each proposes changes of one kind to a case, as fields to replace.

A pass may propose an invalid case, or one that is not smaller; the caller skips both.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.case import Case, Columns, Row

# The simplest value of each option of a case.
PLAIN_OPTIONS: dict[str, Any] = {
    "model": "llama",
    "window": None,
    "tied": False,
    "loss": "token-mean",
    "kernel": "eager",
    "checkpoint": False,
    "wrapper": "none",
    "sync": "last",
    "compiled": False,
    "mixed": False,
    "pad_id": 0,
    "nudge": 0.0,
}

# What drawn columns of a recipe may hold, the plainest first.
PLAINEST_COLUMNS: tuple[Columns, ...] = ("zero", "one", "signs", "drawn")

# Fields of a case, and their new values.
Change = dict[str, Any]
# The tokens that stay: for each row that stays, its number and the positions in it.
KeptTokens = Sequence[tuple[int, Sequence[int]]]


def remove_replicas(case: Case) -> Iterator[Change]:
    """Lower dp, with all rows or with only those of one replica."""
    for dp in _smaller_numbers(case.dp):
        yield {"dp": dp}
        for first in range(case.dp):
            kept = [(r, range(len(case.rows[r]))) for r in range(first, len(case.rows), case.dp)]
            yield from ({**change, "dp": dp} for change in _keep_tokens(case, kept, dp))


def remove_sequence_ranks(case: Case) -> Iterator[Change]:
    """Lower sp, with all heads or with fewer."""
    for sp in _smaller_numbers(case.sp):
        yield {"sp": sp}
        yield from ({**change, "sp": sp} for change in _fewer_heads(case, sp))


def remove_rows(case: Case) -> Iterator[Change]:
    """Remove adjacent rows, as many for each replica."""
    whole = [(r, range(len(row))) for r, row in enumerate(case.rows)]
    for per_replica in _removable_counts(len(case.rows) // case.dp):
        count = per_replica * case.dp
        for start in range(0, len(whole) - count + 1, 1 if per_replica == 1 else case.dp):
            yield from _keep_tokens(case, [*whole[:start], *whole[start + count :]], case.dp)


def shorten_rows(case: Case) -> Iterator[Change]:
    """Halve all rows, or remove adjacent tokens of one row."""
    whole = [(r, range(len(row))) for r, row in enumerate(case.rows)]
    if any(len(row) > 1 for row in case.rows):
        first_halves = [(r, positions[: -(-len(positions) // 2)]) for r, positions in whole]
        second_halves = [(r, positions[len(positions) // 2 :]) for r, positions in whole]
        yield from _keep_tokens(case, first_halves, case.dp)
        yield from _keep_tokens(case, second_halves, case.dp)
    for r, positions in whole:
        for count in _removable_counts(len(positions)):
            for start in range(0, len(positions) - count + 1, count):
                kept = (r, [*positions[:start], *positions[start + count :]])
                yield from _keep_tokens(case, [*whole[:r], kept, *whole[r + 1 :]], case.dp)


def lower_counts(case: Case) -> Iterator[Change]:
    """Lower the number of optimizer steps, of layers, or of micro-batches."""
    for name in ("steps", "layers", "micro_batches"):
        yield from ({name: number} for number in _smaller_numbers(getattr(case, name)))


def remove_heads(case: Case) -> Iterator[Change]:
    """Lower the number of query heads, of key-value heads, or of both."""
    return _fewer_heads(case, case.sp)


def narrow_heads(case: Case) -> Iterator[Change]:
    """Lower the dimension of a head, which stays even."""
    yield from ({"head_dim": number} for number in (2, case.head_dim // 4 * 2, case.head_dim - 2))


def reduce_vocabulary(case: Case) -> Iterator[Change]:
    """Lower the number of ids, and wrap the pad id and stated ids around it."""
    for vocab in _smaller_numbers(case.vocab):
        ids = case.ids and tuple(tuple(i % vocab for i in row) for row in case.ids)
        yield {"vocab": vocab, "pad_id": case.pad_id % vocab, "ids": ids}


def reset_options(_: Case) -> Iterator[Change]:
    """Set all options to their plain values, or one of them."""
    yield PLAIN_OPTIONS
    yield from ({name: value} for name, value in PLAIN_OPTIONS.items())


def reset_settings(case: Case) -> Iterator[Change]:
    """Leave all settings of the step at their defaults, or one of them."""
    yield {"settings": ()}
    yield from (
        {"settings": tuple(other for other in case.settings if other is not setting)}
        for setting in case.settings
    )


def simplify_rows(case: Case) -> Iterator[Change]:
    """Pad all rows on the right and fill their masks; or change the side or mask of one row."""
    yield {"rows": tuple(Row("1" * len(row)) for row in case.rows)}
    for r, row in enumerate(case.rows):
        n = len(row)
        flipped = (f"{row.mask[:t]}{1 - int(row.mask[t])}{row.mask[t + 1 :]}" for t in range(n))
        plainer = [Row(row.mask)] + [Row(mask, row.side) for mask in ("1" * n, "0" * n, *flipped)]
        yield from ({"rows": (*case.rows[:r], one, *case.rows[r + 1 :])} for one in plainer)


def simplify_ids(case: Case) -> Iterator[Change]:
    """Leave the ids to the seed, or set all of them or one to the smallest that is no padding."""
    if case.ids is None:
        return
    yield {"ids": None}
    plain = 1 if case.pad_id == 0 else 0
    yield {"ids": tuple(tuple(plain for _ in row) for row in case.ids)}
    for r, row in enumerate(case.ids):
        for t in range(len(row)):
            changed = (*row[:t], plain, *row[t + 1 :])
            yield {"ids": (*case.ids[:r], changed, *case.ids[r + 1 :])}


def lower_seed(_: Case) -> Iterator[Change]:
    """Try the smallest seeds."""
    yield from ({"seed": seed} for seed in range(4))


def plain_columns(_: Case) -> Iterator[Change]:
    """Put plain numbers into the drawn columns of the candidate's recipe."""
    yield from ({"columns": columns} for columns in PLAINEST_COLUMNS)


PASSES: tuple[Callable[[Case], Iterator[Change]], ...] = (
    remove_replicas,
    remove_sequence_ranks,
    remove_rows,
    shorten_rows,
    lower_counts,
    remove_heads,
    narrow_heads,
    reduce_vocabulary,
    reset_options,
    reset_settings,
    simplify_rows,
    simplify_ids,
    lower_seed,
)


def _fewer_heads(case: Case, sp: int) -> Iterator[Change]:
    """Yield smaller numbers of heads, first those that sp ranks can share."""
    for heads in sorted({sp, 2 * sp, *_smaller_numbers(case.heads)}):
        for kv_heads in sorted({1, sp, heads, *_smaller_numbers(case.kv_heads)}):
            if heads <= case.heads and kv_heads <= case.kv_heads:
                yield {"heads": heads, "kv_heads": kv_heads}


def _keep_tokens(case: Case, kept: KeptTokens, dp: int) -> Iterator[Change]:
    """Yield the change that keeps only these tokens, with new ids from the seed or with theirs."""
    rows = tuple(
        Row("".join(case.rows[r].mask[t] for t in positions), case.rows[r].side)
        for r, positions in kept
    )
    ids = tuple(tuple(case.ids_of(r)[t] for t in positions) for r, positions in kept)
    micro_batches = max(1, min(case.micro_batches, len(rows) // dp))
    if case.ids is None:
        yield {"rows": rows, "micro_batches": micro_batches}
    yield {"rows": rows, "micro_batches": micro_batches, "ids": ids}


def _smaller_numbers(number: int) -> list[int]:
    """Return some smaller positive numbers, the smallest first."""
    return sorted(n for n in {1, 2, number // 2, number - 1} if 0 < n < number)


def _removable_counts(count: int) -> list[int]:
    """Return how many of `count` things to try to remove, most first; one must stay."""
    return sorted({count - 1, count // 2, count // 4, 1} - {0, count}, reverse=True)
