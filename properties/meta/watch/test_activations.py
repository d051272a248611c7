"""What attention exchanged is told from everything else that was given to collectives."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import distributed as dist

from harness.watch.activations import sent
from harness.watch.collectives import GATE
from harness.watch.witness import Passed


@dataclass(frozen=True)
class Group:
    """Stands for one of torch's."""

    ranks: tuple[int, ...] = ()
    group_desc: str = "undefined"


PAIR, WORLD, ACROSS, ALONE = (Group(ranks) for ranks in ((0, 1), (0, 1, 2, 3), (0, 2), (0,)))
# A candidate's own, which is no more.
ENDED = Group()
# Of one width those of two shapes, and one of another.
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
    to: int | list[int] | None = None,
) -> Passed:
    return Passed(kind, group, [(shape, dtype) for shape in shapes], to)


def counted(*passed: Passed) -> int:
    """By rank 0 to rank 1, of a model whose parameters may be cut in two."""
    return sent(passed, 0, {0, 1}, (1, 2), WEIGHTS)


@pytest.mark.parametrize(
    ("entry", "size"),
    [
        # One of two pieces stays at home, and three of four go elsewhere.
        (given("all_to_all_base", (6,)), 12),
        (given("all_to_all_base", (8,), group=WORLD), 8),
        (given("all_to_all_base", (6, 2), to=[1, 5]), 40),
        (given("all_to_all", (3, 2), (5, 2)), 40),
        (given("all_to_all", (3, 2), (5, 2), (7, 2), (9, 2), group=WORLD), 40),
        (given("all_gather", (3, 2, 4)), 96),
        (given("all_gather", (3, 2, 4), dtype=torch.bfloat16), 48),
        (given("reduce_scatter", (3, 2, 4), group=WORLD), 96),
        (given("all_gather", (3, 2)), 24),
        # One of them sends it, and both are asked for it.
        (given("broadcast", (3, 2)), 12),
        # Losses and labels of each token, or pieces of a model.
        (given("all_gather", (1000,)), 0),
        (given("reduce_scatter", (1000,)), 0),
        # Indices; gradients that all ranks sum up; keys that one has and others have zeros for.
        (given("all_gather", (3, 2), dtype=torch.int64), 0),
        (given("all_reduce", (100,)), 0),
        (given("all_reduce", (10, 10)), 0),
        (given("all_reduce", (3, 2, 4)), 96),
        # To other replicas, or to nobody; and a group of which nothing is known any more.
        (given("all_gather", (3, 2, 4), group=ACROSS), 0),
        (given("all_to_all_base", (6,), group=ACROSS), 0),
        (given("all_to_all_base", (6,), group=ALONE), 0),
        (given("all_gather", (3, 2, 4), group=ALONE), 0),
        (given("all_gather", (3, 2, 4), group=ENDED), 96),
        (given("all_to_all_base", (6,), group=ENDED), 24),
        # Messages to a peer, to itself, to another replica; and what is received.
        (given("send", (3, 2, 4), to=1), 96),
        (given("send", (3,), to=1), 12),
        (given("send", (3, 2, 4), to=0), 0),
        (given("send", (3, 2, 4), to=1, group=ACROSS), 0),
        (given("recv"), 0),
        # What the harness enters itself.
        (given("all_gather", (3, 2, 4), group=Group((0, 1), f"{GATE} of 1x2")), 0),
    ],
)
def test_of_what_passes_only_activations_to_peers_count_as_sent(entry: Passed, size: int) -> None:
    assert counted(entry) == size


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        # All weights once, and twice, and in halves, and some of them.
        (WHOLE, 0),
        (2 * WHOLE, 0),
        ([(2, 4), (2, 4), (4, 4), (2, 8)], 0),
        (WHOLE[1:], 0),
        # Keys that look like a weight, alone and beside all weights.
        (4 * [(4, 4)], 4 * 64),
        ([*WHOLE, *(4 * [(4, 4)])], 4 * 64),
        ([*WHOLE, *(4 * [(3, 4)])], 4 * 48),
    ],
)
def test_parameters_do_not_count_and_keys_of_the_same_shape_do(
    shapes: list[tuple[int, int]], size: int
) -> None:
    assert counted(*(given("all_gather", shape) for shape in shapes)) == size
