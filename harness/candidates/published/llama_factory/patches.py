"""Limit to one case what LLaMA-Factory keeps or changes for a whole process."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.llama_factory import library
from harness.candidates.published.wiring.gathering import all_gather
from harness.candidates.published.wiring.meshes import mesh
from harness.case import Case

FORWARD = "_flash_attention_forward"


@contextmanager
def interface(case: Case, rank: Rank) -> Iterator[None]:
    """While this lasts, the library's one interface to ranks uses the harness's groups."""

    def make_mesh(*, mesh_dim_names: tuple[str, str], **_: Any) -> DeviceMesh | None:
        # The mesh of sharded parameters is not used.
        return mesh(case, rank, mesh_dim_names) if mesh_dim_names == ("dp", "cp") else None

    variables = {"RANK": str(rank.index), "WORLD_SIZE": str(case.ranks)}
    with (
        patch.dict(os.environ, variables),
        patch.object(library.DistributedInterface, "_instance", None),
        patch.object(library.interface, "init_process_group", lambda **_: None),
        patch.object(library.interface, "init_device_mesh", make_mesh),
        # A CPU has nothing to wait for.
        patch.object(library.helper, "synchronize", lambda: None),
    ):
        library.DistributedInterface({"cp_size": case.sp})
        yield


@contextmanager
def sharing(
    model: Any, case: Case, rank: Rank, cross_entropy: Callable[..., Tensor]
) -> Iterator[None]:
    """While this lasts, the model shares sequences; at the end transformers is as it was."""
    collectives = SimpleNamespace(
        # The library takes this for the device of batches.
        get_rank=lambda: rank.device,
        all_gather=dist.all_gather,
        nn=SimpleNamespace(all_gather=all_gather),
    )
    functional = SimpleNamespace(pad=F.pad, cross_entropy=cross_entropy)
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            if FORWARD in names and names.get("__name__", "").startswith("transformers"):
                stack.enter_context(patch.dict(names, {FORWARD: names[FORWARD]}))
        stack.enter_context(patch.object(library.parallel, "dist", collectives))
        stack.enter_context(patch.object(library.parallel, "F", functional))
        library.apply_sequence_parallel(model, {"cp_size": case.sp})
        yield
