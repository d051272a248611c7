"""Gradients that a step leaves sharded are made whole."""

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from harness.recipes.result import on_host, whole
from properties.helpers.groups import group_of_one


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_a_sharded_tensor_is_whole_here_and_on_the_host(placement: Placement) -> None:
    x = torch.arange(12.0).view(3, 4)
    with group_of_one() as group:
        sharded = distribute_tensor(
            x, DeviceMesh.from_group(group, "cpu", mesh_dim_names=("all",)), [placement]
        )
        assert torch.equal(whole(sharded), x)
        copied = on_host(sharded)
        assert copied.device_mesh.device_type == "cpu"
        assert copied.placements == (placement,)
        assert torch.equal(copied.full_tensor(), x)
