"""How much of what is in torch's log of collectives can have been what attention exchanges.

Only what goes to a peer counts, a rank that shares sequences with this one. Parameters and their
gradients have to be told from activations, and the log knows no more of a tensor than its shape:

1. What is flat counts in all-to-alls only: DDP, FSDP and ZeRO share parameters and gradients as
   flat buckets, and losses and labels of tokens are flat, too.
2. What is summed up by all ranks and has two dims is a gradient.
3. Parameters are never shared alone: what has their shape, or that of even shares of them, is
   taken for parameters as often as those of another width come. What comes more often than that
   is not: keys of as many tokens as a weight has rows stay keys.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from harness.ranks.collectives import BUFFER, GATE, MESSAGES, group_of, kind_of, members, recorded

# Bytes of a number, of those kinds that activations are made of.
SIZES = {"Double": 8, "Float": 4, "BFloat16": 2, "Half": 2, "Byte": 1, "Char": 1}

Shape = tuple[int, ...]


def sent_since(
    moment_ns: int, peers: set[int], ways: Iterable[int], parameters: Counter[Shape]
) -> tuple[int | None, bool]:
    """Bytes of activations that were given to collectives since a moment of `time.time_ns()`.

    Among `peers`, this rank included; `parameters` may be shared in so many `ways`. Nothing where
    a backend keeps no log: ranks wait for each other before every case, so that none is empty.
    And whether the log was too short to hold them all.
    """
    entries = recorded()
    recent = [entry for entry in entries if entry["time_created_ns"] >= moment_ns]
    if not entries:
        return None, False
    exchanged, seen = 0.0, Counter[Shape]()
    sizes: defaultdict[Shape, float] = defaultdict(float)
    for entry in recent:
        kind, share = kind_of(entry), _share(entry, peers)
        given = zip(entry.get("input_sizes", []), entry.get("input_dtypes", []), strict=False)
        for dims, dtype in given:
            size = math.prod(dims) * SIZES.get(dtype, 0)
            if kind.startswith("all_to_all"):
                exchanged += size * share
            elif len(dims) > 2 or (len(dims) == 2 and not kind.startswith("all_reduce")):
                sizes[tuple(dims)] += size * share
                seen[tuple(dims)] += 1
    left = _besides(parameters, set(ways), seen)
    exchanged += sum(sizes[shape] * left[shape] / seen[shape] for shape in seen)
    return round(exchanged), len(recent) == len(entries) >= BUFFER


def _share(entry: dict[str, Any], peers: set[int]) -> float:
    """Of what a rank gives to a collective, how much goes to peers."""
    kind, group = kind_of(entry), group_of(entry)
    # Messages are counted where they are sent.
    if kind.startswith(MESSAGES) or group.startswith(GATE):
        return 0
    everyone = members(group)
    if not everyone:
        # Of a candidate's own group the log has no members.
        return 1
    others = len(everyone & peers) - 1
    if others < 1:
        return 0
    if kind.startswith("all_to_all"):
        return others / len(everyone)
    # Which of them it comes from is not in the log: each has an equal part in it.
    return 1 / len(everyone) if kind.startswith("broadcast") else 1


def _besides(parameters: Counter[Shape], ways: set[int], seen: Counter[Shape]) -> Counter[Shape]:
    """How often each shape comes besides as parameters."""
    for among in {1, *ways}:
        shares = Counter[Shape]()
        for (rows, *others), number in parameters.items():
            shares[-(-rows // among), *others] += number
        rounds: Counter[Shape] = Counter()
        for (rows, *width), number in shares.items():
            often = math.ceil(seen[rows, *width] / number)
            rounds[tuple(width)] = max(rounds[tuple(width)], often)
        # Of the width that activations have, more may have come.
        times = sorted([0, 0, *rounds.values()])[-2]
        # What is left of a count is never below zero.
        seen = seen - Counter({shape: times * number for shape, number in shares.items()})
    return seen
