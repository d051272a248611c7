"""Limit to one case what ms-swift changes for a whole process."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.ms_swift.library import (
    SequenceParallel,
    meshes,
    sequence_parallel,
)
from harness.candidates.published.wiring.restored import restored

# What a mesh of replicas by ranks of a sequence calls its dimensions.
NAMES = ("data", "sequence")
# Kept by shape: the groups of a mesh last as long as the process.
init_device_mesh: Callable[..., DeviceMesh] = cache(vars(meshes)["init_device_mesh"])


def mesh_maker(groups: DeviceMesh) -> Callable[..., DeviceMesh]:
    """Return a maker of its meshes, which uses the harness's groups where these are enough."""

    def make(device: str, *, mesh_shape: tuple[int, ...], mesh_dim_names: Any) -> DeviceMesh:
        if mesh_dim_names == NAMES:
            return groups
        return init_device_mesh(device, mesh_shape=mesh_shape, mesh_dim_names=mesh_dim_names)

    return make


@contextmanager
def prepared(
    models: Sequence[Any], groups: DeviceMesh, pad_id: int, *, packed: bool
) -> Iterator[None]:
    """While this lasts, the models share sequences; at the end the process is as it was."""
    sp = groups["sequence"].size()
    if sp == 1:
        # On one rank ms-swift prepares nothing.
        yield
        return
    with restored(), ExitStack() as stack:
        stack.enter_context(patch.object(SequenceParallel, "_global_inited", False))
        stack.enter_context(patch.object(meshes, "init_device_mesh", mesh_maker(groups)))
        # A launcher starts the ranks of the case; the pool may have more.
        stack.enter_context(patch.dict(os.environ, WORLD_SIZE=str(groups.size())))
        sequence_parallel.__init__()
        tokenizer = SimpleNamespace(pad_token_id=pad_id)
        for model in models:
            sequence_parallel.prepare(sp, model, tokenizer, padding_free=packed)
        yield
