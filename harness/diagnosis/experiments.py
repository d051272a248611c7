"""Draw small ragged cases near a failing one, for the same ranks."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from harness.case import Case, Row

TOKENS, LONGEST_ROW = 24, 7
# In this share of the cases the pad id also occurs as a real token.
PAD_ID_SHARE = 0.4


def simplifications(case: Case) -> Iterator[dict[str, Any]]:
    """Yield fields that make the case plainer and its numbers easier to read.

    The first change is the most thorough. Later ones leave more of the case as it is: the failure
    may need it, or the candidate may support nothing else.
    """
    width, vocab = -(-TOKENS // case.heads), max(case.vocab, TOKENS + 1)
    small = {"layers": 1, "steps": 1, "tied": False, "nudge": 0.0, "vocab": vocab}
    wide = {"head_dim": max(case.head_dim, width + width % 2)}
    yield {**small, **wide, "dtype": "fp64", "mixed": False}
    yield {**small, **wide}
    yield small
    yield {"steps": 1, "nudge": 0.0}
    yield {}


def with_other_heads(case: Case) -> Iterator[Case]:
    """Yield the case itself, then the case with more heads and as many kv heads or more."""
    yield case
    heads, kv_heads = case.heads, case.kv_heads
    for times, more_kv_heads in ((2, kv_heads), (2, 2 * heads), (4, 2 * heads)):
        yield replace(case, heads=times * heads, kv_heads=more_kv_heads)


def neighbours(case: Case, changed: dict[str, Any]) -> Iterator[Case]:
    """Yield other small batches for the same ranks and heads, without end.

    If the vocabulary is large enough, every token of a batch has an id of its own, so that it is
    recognised wherever it turns up.
    """
    random = Random(f"{case.id} {changed}")  # noqa: S311 - cases, not secrets
    plain = replace(case, ids=None, **changed)
    sides = sorted({row.side for row in case.rows})
    while True:
        rows: list[Row] = []
        # With one replica, a factor of sp cannot be mistaken for a factor of dp.
        dp = random.choice((case.dp, case.dp, 1))
        count = dp * (case.micro_batches + random.randrange(3))
        # The head's gradient determines the weights of as many tokens as the hidden state is wide.
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
            ids=_distinct_ids(plain, rows, random),
            window=plain.window and random.randint(1, LONGEST_ROW - 1),
            seed=random.randrange(1 << 16),
        )


def _mask(length: int, random: Random) -> str:
    """Mask a prompt and not its answer, or mask any tokens."""
    prompt = random.randrange(length)
    answer_bits = "0" * prompt + "1" * (length - prompt)
    share = random.choice((0.5, 0.8, 1.0))
    any_bits = "".join("1" if random.random() < share else "0" for _ in range(length))
    return random.choice((answer_bits, any_bits, any_bits))


def _distinct_ids(case: Case, rows: list[Row], random: Random) -> tuple[tuple[int, ...], ...]:
    """Draw different ids as long as the vocabulary has any; now and then the pad id is one."""
    others = [number for number in range(case.vocab) if number != case.pad_id]
    tokens = sum(map(len, rows))
    ids = random.sample(others * -(-tokens // len(others)), tokens)
    if random.random() < PAD_ID_SHARE:
        ids[random.randrange(tokens)] = case.pad_id
    remaining = iter(ids)
    return tuple(tuple(next(remaining) for _ in range(len(row))) for row in rows)
