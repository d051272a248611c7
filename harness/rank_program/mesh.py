"""The process groups of a mesh (dp, sp), made once and kept.

In each group of gloo a thread wakes a hundred times a second. So meshes share what they can: the
group of one rank alone, and the gate of the first so many ranks.
"""

from dataclasses import dataclass

import torch
from torch import distributed as dist

from harness.candidates.protocol import Rank
from harness.watch.collectives import GATE, group_name

# What a group of one rank is called, whichever meshes share it.
ALONE = "one rank"


@dataclass(frozen=True, slots=True)
class Seat:
    """This process in one mesh, and the group in which the harness lets its ranks wait."""

    rank: Rank
    gate: dist.ProcessGroup


def mesh_position(index: int, sp: int) -> tuple[int, int]:
    """Return (dp_index, sp_index): peers are neighbours, index = dp_index * sp + sp_index."""
    return divmod(index, sp)


def groups(dp: int, sp: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the sp groups, each in the order of its sequence, and the dp groups."""
    everyone = list(range(dp * sp))
    sp_groups = [everyone[d * sp : (d + 1) * sp] for d in range(dp)]
    dp_groups = [everyone[s::sp] for s in range(sp)]
    return sp_groups, dp_groups


class Meshes:
    """The seats of this process, by the shape of the mesh."""

    def __init__(self, index: int, device: torch.device) -> None:
        self._index, self._device = index, device
        self._seats: dict[tuple[int, int], Seat | None] = {}
        # By name, of other ranks as well.
        self._groups: dict[str, dist.ProcessGroup] = {}

    def build(self, dp: int, sp: int) -> None:
        """Make the groups of a mesh; every rank of the pool must call this, in the same order."""
        everyone = list(range(dp * sp))
        sp_groups, dp_groups = groups(dp, sp)
        sp_group = self._make_groups(sp_groups, f"sp of {dp}x{sp}")
        dp_group = self._make_groups(dp_groups, f"dp of {dp}x{sp}")
        world = self._make_groups([everyone], f"world of {dp}x{sp}")
        gate = self._make_groups([everyone], f"{GATE} of {dp * sp}")
        if not (sp_group and dp_group and world and gate):
            self._seats[dp, sp] = None
            return
        dp_index, sp_index = mesh_position(self._index, sp)
        rank = Rank(self._index, dp_index, sp_index, self._device, dp_group, sp_group, world)
        self._seats[dp, sp] = Seat(rank, gate)

    def seat(self, dp: int, sp: int) -> Seat:
        seat = self._seats[dp, sp]
        if seat is None:
            raise ValueError(f"rank {self._index} has no place in a mesh of {dp}x{sp}")
        return seat

    def _make_groups(self, groups: list[list[int]], description: str) -> dist.ProcessGroup | None:
        """Create all of these groups, as torch requires of every rank; return this rank's own.

        With local synchronisation only members would have to. But then torch derives a group's
        name from the number of groups that a rank has made, and hangs if ranks differ in that.
        """
        own = None
        for ranks in groups:
            name = group_name(description if len(ranks) > 1 else ALONE, ranks)
            if name not in self._groups:
                self._groups[name] = dist.new_group(ranks, group_desc=name)
            if self._index in ranks:
                own = self._groups[name]
        return own
