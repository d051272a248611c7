"""Small ragged cases near a failing one, for the same ranks."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from harness.case import Case, Row

TOKENS, LONGEST_ROW = 24, 7
# In how many the pad id is a token like any other.
PAD_ID = 0.4


def plainer(case: Case) -> Iterator[dict[str, Any]]:
    """What says the least about a step and makes it harder to read: at first all of it goes.

    For a failure that needs it, or a candidate that can do nothing else, less and less.
    """
    width, vocab = -(-TOKENS // case.heads), max(case.vocab, TOKENS + 1)
    few = {"layers": 1, "steps": 1, "tied": False, "nudge": 0.0, "vocab": vocab}
    wide = {"head_dim": max(case.head_dim, width + width % 2)}
    yield {**few, **wide, "dtype": "fp64", "mixed": False}
    yield {**few, **wide}
    yield few
    yield {"steps": 1, "nudge": 0.0}
    yield {}


def with_other_heads(case: Case) -> Iterator[Case]:
    """More of them, with as many keys and values as before or more; first the case itself."""
    yield case
    heads, keys = case.heads, case.kv_heads
    for more, more_keys in ((2, keys), (2, 2 * heads), (4, 2 * heads)):
        yield replace(case, heads=more * heads, kv_heads=more_keys)


def neighbours(case: Case, changed: dict[str, Any]) -> Iterator[Case]:
    """Other small batches for the same ranks and heads, without end.

    Every token of a batch has an id of its own where there are enough, so that it is known again
    wherever it turns up.
    """
    random = Random(f"{case.id} {changed}")  # noqa: S311 - cases, not secrets
    plain = replace(case, ids=None, **changed)
    sides = sorted({row.side for row in case.rows})
    while True:
        rows: list[Row] = []
        # With one replica, what is off by sp is told from what is off by dp.
        dp = random.choice((case.dp, case.dp, 1))
        count = dp * (case.micro_batches + random.randrange(3))
        # With more tokens than the hidden state is wide, their losses cannot be told apart.
        room = max(2 * count, min(TOKENS, plain.heads * plain.head_dim, plain.vocab - 1))
        for _ in range(count):
            left = room - sum(map(len, rows)) - (count - len(rows) - 1)
            length = random.randint(1, max(1, min(left, LONGEST_ROW)))
            rows.append(Row(_mask(length, random), random.choice(sides)))
        if not any(row.supervised() for row in rows):
            continue
        yield replace(
            plain,
            dp=dp,
            rows=tuple(rows),
            ids=_distinct(plain, rows, random),
            window=plain.window and random.randint(1, LONGEST_ROW - 1),
            seed=random.randrange(1 << 16),
        )


def _mask(length: int, random: Random) -> str:
    """Mask a prompt and not its answer, or mask any tokens."""
    prompt = random.randrange(length)
    of_answer = "0" * prompt + "1" * (length - prompt)
    share = random.choice((0.5, 0.8, 1.0))
    of_any = "".join("1" if random.random() < share else "0" for _ in range(length))
    return random.choice((of_answer, of_any, of_any))


def _distinct(case: Case, rows: list[Row], random: Random) -> tuple[tuple[int, ...], ...]:
    """One id for each token as far as there are any; the pad id is one of them now and then."""
    others = [number for number in range(case.vocab) if number != case.pad_id]
    tokens = sum(map(len, rows))
    ids = random.sample(others * -(-tokens // len(others)), tokens)
    if random.random() < PAD_ID:
        ids[random.randrange(tokens)] = case.pad_id
    coming = iter(ids)
    return tuple(tuple(next(coming) for _ in range(len(row))) for row in rows)
