"""The groups of a case, by the library's names for the axes of its mesh."""

from types import SimpleNamespace
from typing import Any

from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.protocol import Rank
from harness.candidates.published.wiring import meshes
from harness.case import Case

SHARDED, REPLICATED = "dp_shard_cp", "dp_replicate"


class Mesh(dict[Any, Any]):
    """A stand-in for the mesh of the recipe's setup, which would make groups of its own."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        return tuple(name for name in self if isinstance(name, str))

    def size(self) -> int:
        size: int = self["dp_cp"].size()
        return size


def mesh(case: Case, rank: Rank, *, hybrid: bool = False) -> Mesh:
    """Return the mesh of a case; `dp_replicate_size` is 1, or with `hybrid` all of dp."""
    both = meshes.mesh(case, rank, (REPLICATED, SHARDED)) if hybrid and case.dp > 1 else None
    return _axes(rank.device.type, rank.dp, rank.sp, rank.world, both)


def mesh_of(given: DeviceMesh, *, hybrid: bool) -> Mesh:
    """Return the mesh of a step that has the axes dp and sp and takes all ranks."""
    dp, sp, world = given["dp"].get_group(), given["sp"].get_group(), dist.group.WORLD
    assert world is not None
    both = None
    if hybrid and dp.size() > 1:
        names = REPLICATED, SHARDED
        both = DeviceMesh.from_group([dp, sp], given.device_type, given.mesh, mesh_dim_names=names)
    return _axes(given.device_type, dp, sp, world, both)


def _axes(
    device_type: str,
    dp: dist.ProcessGroup,
    sp: dist.ProcessGroup,
    world: dist.ProcessGroup,
    both: DeviceMesh | None,
) -> Mesh:
    def line(group: dist.ProcessGroup, name: str) -> DeviceMesh:
        return DeviceMesh.from_group(group, device_type, mesh_dim_names=(name,))

    alone: Any = SimpleNamespace(size=lambda: 1)
    axes = Mesh(
        cp=line(sp, "cp"),
        dp=line(dp, "dp"),
        dp_cp=line(world, "dp_cp"),
        tp=alone,
        dp_replicate=alone,
        dp_shard=line(dp, "dp_shard"),
        dp_shard_cp=line(world, SHARDED),
    )
    if both is not None:
        axes[REPLICATED] = line(dp, REPLICATED)
        # The second axis has another name if no ranks share a sequence.
        axes[REPLICATED, SHARDED] = axes[REPLICATED, "dp_shard"] = both
    return axes
