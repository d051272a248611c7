"""How much of what this rank gave to collectives can have been what attention exchanges.

Only what goes to a peer counts, a rank that shares sequences with this one. Parameters and their
gradients have to be told from activations, and there is no more to tell them by than shapes:

1. What is flat counts in all-to-alls and messages only: DDP, FSDP and ZeRO share parameters and
   gradients as flat buckets, and losses and labels of tokens are flat, too.
2. What is summed up by all ranks and has two dims is a gradient.
3. Parameters are never shared alone: what has their shape, or that of even shares of them, is
   taken for parameters as often as those of another width come. What comes more often than that
   is not: keys of as many tokens as a weight has rows stay keys.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import distributed as dist

from harness.watch.collectives import GATE
from harness.watch.witness import Passed, Shape

# Kinds of numbers that activations are made of, quantized ones too.
NUMBERS = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int8}


def sent(
    passed: Iterable[Passed],
    rank: int,
    peers: set[int],
    ways: Iterable[int],
    parameters: Counter[Shape],
) -> int:
    """Bytes of activations that `rank` gave to its peers.

    `parameters` may be shared in so many `ways`.
    """
    others = peers - {rank}
    exchanged, seen = 0.0, Counter[Shape]()
    sizes: defaultdict[Shape, float] = defaultdict(float)
    for each in passed:
        if each.group.group_desc.startswith(GATE):
            continue
        everyone = _members(each.group)
        if each.kind == "send" or each.kind.startswith("all_to_all"):
            exchanged += sum(_to(others, each, everyone))
            continue
        share = _share(each.kind, everyone, others)
        for shape, dtype in each.given:
            size = math.prod(shape) * dtype.itemsize if dtype in NUMBERS else 0
            if len(shape) > 2 or (len(shape) == 2 and not each.kind.startswith("all_reduce")):
                sizes[shape] += size * share
                seen[shape] += 1
    left = _besides(parameters, set(ways), seen)
    exchanged += sum(sizes[shape] * left[shape] / seen[shape] for shape in seen)
    return round(exchanged)


def _members(group: dist.ProcessGroup) -> list[int] | None:
    """In the order of the group; nothing where a candidate has ended its own."""
    try:
        return dist.get_process_group_ranks(group)
    except KeyError:
        return None


def _to(others: set[int], passed: Passed, everyone: Sequence[int] | None) -> Iterator[int]:
    """Bytes of what is addressed to these; of a group that is no more, all."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in passed.given]
    if everyone is None:
        yield from sizes
    elif isinstance(passed.to, int):
        yield from sizes if everyone[passed.to] in others else ()
    else:
        if passed.kind == "all_to_all_base":
            rows = passed.to or [1] * len(everyone)
            sizes = [sizes[0] * each // max(sum(rows), 1) for each in rows]
        yield from (size for rank, size in zip(everyone, sizes, strict=False) if rank in others)


def _share(kind: str, everyone: Sequence[int] | None, others: set[int]) -> float:
    """How much of what a rank gives to a collective goes to other peers."""
    if everyone is None:
        return 1
    if not others.intersection(everyone):
        return 0
    # Which of them it comes from is not noted: each has an equal part in it.
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
        # More may have come of the width that activations have.
        times = sorted([0, 0, *rounds.values()])[-2]
        # What is left of a count is never below zero.
        seen = seen - Counter({shape: times * number for shape, number in shares.items()})
    return seen
