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

    def line(group: dist.ProcessGroup, name: str) -> DeviceMesh:
        return DeviceMesh.from_group(group, rank.device.type, mesh_dim_names=(name,))

    alone: Any = SimpleNamespace(size=lambda: 1)
    axes = Mesh(
        cp=line(rank.sp, "cp"),
        dp=line(rank.dp, "dp"),
        dp_cp=line(rank.world, "dp_cp"),
        tp=alone,
        dp_replicate=alone,
        dp_shard=line(rank.dp, "dp_shard"),
        dp_shard_cp=line(rank.world, SHARDED),
    )
    if hybrid and case.dp > 1:
        both = meshes.mesh(case, rank, (REPLICATED, SHARDED))
        axes[REPLICATED] = line(rank.dp, REPLICATED)
        # The second axis has another name if no ranks share a sequence.
        axes[REPLICATED, SHARDED] = axes[REPLICATED, "dp_shard"] = both
    return axes
