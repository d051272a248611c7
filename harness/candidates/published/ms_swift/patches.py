"""Limit to one case what ms-swift changes for a whole process."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.protocol import Rank
from harness.candidates.published.ms_swift.library import (
    SequenceParallel,
    meshes,
    sequence_parallel,
)
from harness.candidates.published.wiring.meshes import mesh
from harness.candidates.published.wiring.restored import restored
from harness.case import Case

# Kept by shape: the groups of a mesh last as long as the process.
init_device_mesh: Callable[..., DeviceMesh] = cache(vars(meshes)["init_device_mesh"])


def mesh_maker(case: Case, rank: Rank) -> Callable[..., DeviceMesh]:
    """Return a maker of its meshes, which uses the harness's groups where these are enough."""

    def make(device: str, *, mesh_shape: tuple[int, ...], mesh_dim_names: Any) -> DeviceMesh:
        if mesh_dim_names == ("data", "sequence"):
            return mesh(case, rank, mesh_dim_names)
        return init_device_mesh(device, mesh_shape=mesh_shape, mesh_dim_names=mesh_dim_names)

    return make


@contextmanager
def prepared(case: Case, rank: Rank, model: Any, *, packed: bool) -> Iterator[None]:
    """While this lasts, the model shares sequences; at the end the process is as it was."""
    if case.sp == 1:
        # On one rank ms-swift prepares nothing.
        yield
        return
    with restored(), ExitStack() as stack:
        stack.enter_context(patch.object(SequenceParallel, "_global_inited", False))
        stack.enter_context(patch.object(meshes, "init_device_mesh", mesh_maker(case, rank)))
        # A launcher starts the ranks of the case; the pool may have more.
        stack.enter_context(patch.dict(os.environ, WORLD_SIZE=str(case.ranks)))
        sequence_parallel.__init__()
        tokenizer = SimpleNamespace(pad_token_id=case.pad_id)
        sequence_parallel.prepare(case.sp, model, tokenizer, padding_free=packed)
        yield
