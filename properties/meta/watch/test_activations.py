"""Bytes that attention exchanges are counted, and no other bytes that ranks exchange."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import distributed as dist

from harness.watch.activations import bytes_to_peers
from harness.watch.collectives import GATE
from harness.watch.witness import Call


@dataclass(frozen=True)
class Group:
    """Stands for a process group of torch."""

    ranks: tuple[int, ...] = ()
    group_desc: str = "undefined"


PAIR, WORLD, ACROSS, ALONE = (Group(ranks) for ranks in ((0, 1), (0, 1, 2, 3), (0, 2), (0,)))
# A group that the candidate has destroyed.
ENDED = Group()
# Two shapes of one width, and one of another.
WEIGHTS: Counter[tuple[int, ...]] = Counter({(4, 4): 2, (8, 4): 1, (4, 8): 1})
WHOLE = [(4, 4), (4, 4), (8, 4), (4, 8)]


@pytest.fixture(autouse=True)
def members(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks_of(group: Group) -> list[int]:
        if not group.ranks:
            raise KeyError(group)
        return list(group.ranks)

    monkeypatch.setattr(dist, "get_process_group_ranks", ranks_of)


def given(
    kind: str,
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    group: Any = PAIR,
    target: int | list[int] | None = None,
) -> Call:
    return Call(kind, group, [(shape, dtype) for shape in shapes], target)


def count(*calls: Call) -> int:
    """Count what rank 0 sent to rank 1, with a model whose parameters may be cut in two."""
    return bytes_to_peers(calls, 0, {0, 1}, (1, 2), WEIGHTS)


@pytest.mark.parametrize(
    ("call", "size"),
    [
        # Only the pieces for rank 1 count: one of two, and one of four.
        (given("all_to_all_base", (6,)), 12),
        (given("all_to_all_base", (8,), group=WORLD), 8),
        (given("all_to_all_base", (6, 2), target=[1, 5]), 40),
        (given("all_to_all", (3, 2), (5, 2)), 40),
        (given("all_to_all", (3, 2), (5, 2), (7, 2), (9, 2), group=WORLD), 40),
        (given("all_gather", (3, 2, 4)), 96),
        (given("all_gather", (3, 2, 4), dtype=torch.bfloat16), 48),
        (given("reduce_scatter", (3, 2, 4), group=WORLD), 96),
        (given("all_gather", (3, 2)), 24),
        # Each of the two counts as half of the source.
        (given("broadcast", (3, 2)), 12),
        # Losses or labels of tokens, or pieces of a model.
        (given("all_gather", (1000,)), 0),
        (given("reduce_scatter", (1000,)), 0),
        # Indices; gradients that are summed; keys that are summed because other ranks have zeros.
        (given("all_gather", (3, 2), dtype=torch.int64), 0),
        (given("all_reduce", (100,)), 0),
        (given("all_reduce", (10, 10)), 0),
        (given("all_reduce", (3, 2, 4)), 96),
        # To another replica, to no other rank, and to a group whose members are unknown.
        (given("all_gather", (3, 2, 4), group=ACROSS), 0),
        (given("all_to_all_base", (6,), group=ACROSS), 0),
        (given("all_to_all_base", (6,), group=ALONE), 0),
        (given("all_gather", (3, 2, 4), group=ALONE), 0),
        (given("all_gather", (3, 2, 4), group=ENDED), 96),
        (given("all_to_all_base", (6,), group=ENDED), 24),
        # Messages to a peer, to the rank itself and to another replica; and a received one.
        (given("send", (3, 2, 4), target=1), 96),
        (given("send", (3,), target=1), 12),
        (given("send", (3, 2, 4), target=0), 0),
        (given("send", (3, 2, 4), target=1, group=ACROSS), 0),
        (given("recv"), 0),
        # A collective of the harness.
        (given("all_gather", (3, 2, 4), group=Group((0, 1), f"{GATE} of 1x2")), 0),
    ],
)
def test_only_activations_for_peers_count_as_sent(call: Call, size: int) -> None:
    assert count(call) == size


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        # All weights once, twice and in halves; and some of them.
        (WHOLE, 0),
        (2 * WHOLE, 0),
        ([(2, 4), (2, 4), (4, 4), (2, 8)], 0),
        (WHOLE[1:], 0),
        # Keys with the shape of a weight, alone and beside all weights.
        (4 * [(4, 4)], 4 * 64),
        ([*WHOLE, *(4 * [(4, 4)])], 4 * 64),
        ([*WHOLE, *(4 * [(3, 4)])], 4 * 48),
    ],
)
def test_parameters_do_not_count_and_keys_of_the_same_shape_do(
    shapes: list[tuple[int, int]], size: int
) -> None:
    assert count(*(given("all_gather", shape) for shape in shapes)) == size
