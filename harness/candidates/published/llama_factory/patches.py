"""What LLaMA-Factory keeps or changes for a whole process, for one case only."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.llama_factory import library
from harness.candidates.published.wiring.gathering import all_gather
from harness.case import Case

FORWARD = "_flash_attention_forward"


@contextmanager
def interface(case: Case, rank: Rank) -> Iterator[None]:
    """The library's one interface to ranks, over the groups that the harness has."""

    def mesh(*, mesh_dim_names: tuple[str, ...], **_: Any) -> DeviceMesh | None:
        if mesh_dim_names != ("dp", "cp"):
            # The mesh of sharded parameters is not used.
            return None
        ranks = torch.arange(case.ranks).view(case.dp, case.sp)
        groups = [rank.dp, rank.sp]
        return DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=mesh_dim_names)

    started = {"RANK": str(rank.index), "WORLD_SIZE": str(case.ranks)}
    with (
        patch.dict(os.environ, started),
        patch.object(library.DistributedInterface, "_instance", None),
        patch.object(library.interface, "init_process_group", lambda **_: None),
        patch.object(library.interface, "init_device_mesh", mesh),
        # There is nothing to wait for.
        patch.object(library.helper, "synchronize", lambda: None),
    ):
        library.DistributedInterface({"cp_size": case.sp})
        yield


@contextmanager
def shared(
    model: Any, case: Case, rank: Rank, cross_entropy: Callable[..., Tensor]
) -> Iterator[None]:
    """The model shares sequences; afterwards transformers is as it was."""
    there = SimpleNamespace(
        # The library sends batches to the GPU of this number.
        get_rank=lambda: rank.device,
        all_gather=dist.all_gather,
        nn=SimpleNamespace(all_gather=all_gather),
    )
    heard = SimpleNamespace(pad=F.pad, cross_entropy=cross_entropy)
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            known = getattr(module, "__dict__", {})
            if FORWARD in known and known.get("__name__", "").startswith("transformers"):
                stack.enter_context(patch.dict(known, {FORWARD: known[FORWARD]}))
        stack.enter_context(patch.object(library.parallel, "dist", there))
        stack.enter_context(patch.object(library.parallel, "F", heard))
        library.apply_sequence_parallel(model, {"cp_size": case.sp})
        yield
