"""Count the bytes that a rank gave to collectives and that may be activations of attention.

Only bytes that go to a peer count, a rank that shares sequences with this one. Parameters and
their gradients do not count, and only their shapes distinguish them from activations:

1. Flat tensors count in all-to-alls and messages only: DDP, FSDP and ZeRO share parameters and
   gradients as flat buckets, and losses and labels of tokens are flat, too.
2. A tensor of two dims that all ranks sum up is a gradient.
3. Parameters are never shared alone. Tensors with the shape of a parameter, or of an even share of
   it, count as parameters as often as parameters of another width come. If they come more often,
   the rest are activations: the keys of as many tokens as a weight has rows, for example.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import distributed as dist

from harness.watch.collectives import GATE
from harness.watch.witness import Call, Shape

# The dtypes of activations, including quantized ones.
NUMBERS = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int8}


def bytes_to_peers(
    calls: Iterable[Call],
    rank: int,
    peers: set[int],
    ways: Iterable[int],
    parameters: Counter[Shape],
) -> int:
    """Return how many bytes of activations `rank` gave to its peers.

    `parameters` counts shapes, and each may be cut in one of so many `ways`.
    """
    others = peers - {rank}
    exchanged, seen = 0.0, Counter[Shape]()
    sizes: defaultdict[Shape, float] = defaultdict(float)
    for call in calls:
        if call.group.group_desc.startswith(GATE):
            continue
        members = _members(call.group)
        if call.kind == "send" or call.kind.startswith("all_to_all"):
            exchanged += sum(_addressed_sizes(call, members, others))
            continue
        share = _share_to_others(call.kind, members, others)
        for shape, dtype in call.given:
            size = math.prod(shape) * dtype.itemsize if dtype in NUMBERS else 0
            if len(shape) > 2 or (len(shape) == 2 and not call.kind.startswith("all_reduce")):
                sizes[shape] += size * share
                seen[shape] += 1
    activations = _without_parameters(seen, parameters, set(ways))
    exchanged += sum(sizes[shape] * activations[shape] / seen[shape] for shape in seen)
    return round(exchanged)


def _members(group: dist.ProcessGroup) -> list[int] | None:
    """Return the ranks in the order of the group; None if the candidate has destroyed it."""
    try:
        return dist.get_process_group_ranks(group)
    except KeyError:
        return None


def _addressed_sizes(call: Call, members: Sequence[int] | None, others: set[int]) -> Iterator[int]:
    """Yield the bytes that are addressed to other peers; all bytes if the members are unknown."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in call.given]
    if members is None:
        yield from sizes
    elif isinstance(call.target, int):
        yield from sizes if members[call.target] in others else ()
    else:
        if call.kind == "all_to_all_base":
            rows = call.target or [1] * len(members)
            sizes = [sizes[0] * each // max(sum(rows), 1) for each in rows]
        yield from (size for rank, size in zip(members, sizes, strict=False) if rank in others)


def _share_to_others(kind: str, members: Sequence[int] | None, others: set[int]) -> float:
    """Return which share of what a rank gives to a collective goes to other peers."""
    if members is None:
        return 1
    if not others.intersection(members):
        return 0
    # The source of a broadcast is not noted, so each rank counts as an equal part of it.
    return 1 / len(members) if kind.startswith("broadcast") else 1


def _without_parameters(
    seen: Counter[Shape], parameters: Counter[Shape], ways: set[int]
) -> Counter[Shape]:
    """Return how often each shape was seen, without the times that count as parameters."""
    for among in {1, *ways}:
        shares = Counter[Shape]()
        for (rows, *others), number in parameters.items():
            shares[-(-rows // among), *others] += number
        rounds: Counter[Shape] = Counter()
        for (rows, *width), number in shares.items():
            often = math.ceil(seen[rows, *width] / number)
            rounds[tuple(width)] = max(rounds[tuple(width)], often)
        # The most frequent width may be that of the activations, so the second one decides.
        times = sorted([0, 0, *rounds.values()])[-2]
        # Subtracting a counter leaves no counts below zero.
        seen = seen - Counter({shape: times * number for shape, number in shares.items()})
    return seen
