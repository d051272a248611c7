"""Device meshes over the process groups that the harness already has."""

import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.protocol import Rank
from harness.case import Case


def mesh(case: Case, rank: Rank, names: tuple[str, str]) -> DeviceMesh:
    """Return the mesh of a case, replicas by ranks of a sequence, with these dimension names."""
    ranks = torch.arange(case.ranks).view(case.dp, case.sp)
    return DeviceMesh.from_group([rank.dp, rank.sp], rank.device.type, ranks, mesh_dim_names=names)
