"""A `TrainingWorker` of verl around a given model, over FSDP2 on all ranks."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import lru_cache
from io import StringIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.verl import library, released

make_mesh = device_mesh.init_device_mesh
# What the engine reads of a model's configuration beside the model: the defaults of the release.
OF_MODEL = {
    "enable_activation_offload": False,
    "fused_kernel_options": None,
    "local_path": "",
    "lora_rank": 0,
    "trust_remote_code": False,
    "use_fused_kernels": False,
    "use_liger": False,
    "use_remove_padding": True,
}
# Mixed precision is bf16 by default; clipping would hide an error of scale.
PRECISION = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
UNCLIPPED = float("inf")


class Options(SimpleNamespace):
    """A configuration, which is also read like a dict."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def get_processor(self) -> None:
        """Return None, as of a model: nothing is saved."""


@lru_cache(maxsize=32)
def kept_mesh(kind: str, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """Return a mesh that is made once, since all ranks take part in making its groups."""
    return make_mesh(kind, shape, mesh_dim_names=names)


def mesh_of(kind: str, mesh_shape: Any, *, mesh_dim_names: Any) -> DeviceMesh:
    return kept_mesh(kind, tuple(mesh_shape), tuple(mesh_dim_names))


class Worker:
    """A released worker that trains a given model, and the gradients that its optimizer saw."""

    def __init__(self, released_worker: Any, model: Any) -> None:
        self.released, self.model = released_worker, model
        self.gradients: dict[str, Tensor | None] = {}
        # A step ends with the removal of all gradients.
        released_worker.engine.optimizer.register_step_pre_hook(self.keep)

    def keep(self, *_: Any) -> None:
        self.gradients = {name: weight.grad for name, weight in self.model.named_parameters()}

    def restore(self) -> None:
        """Leave in the model what the optimizer saw."""
        for name, weight in self.model.named_parameters():
            weight.grad = self.gradients[name]


@contextmanager
def working(
    model: Any,
    mesh: DeviceMesh,
    kind: str,
    loss: Any,
    *,
    enable_gradient_checkpointing: bool,
    **of_engine: Any,
) -> Iterator[Worker]:
    """While this lasts, a worker has the model; `of_engine` are options of its configuration."""
    of_model = OF_MODEL | {"enable_gradient_checkpointing": enable_gradient_checkpointing}
    model.set_attn_implementation("flash_attention_2")
    rank = {"WORLD_SIZE": str(mesh.size()), "RANK": str(torch.distributed.get_rank())}
    rank |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    config = released.config.TrainingWorkerConfig(
        model_type=kind,
        model_config=Options(hf_config=model.config, **of_model),
        engine_config=released.config.FSDPEngineConfig(
            strategy="fsdp2",
            ulysses_sequence_parallel_size=mesh["sp"].size(),
            mixed_precision=PRECISION,
            use_torch_compile=False,
            **of_engine,
        ),
        optimizer_config=released.config.FSDPOptimizerConfig(clip_grad=UNCLIPPED),
    )
    loaded = SimpleNamespace(from_pretrained=lambda **_: model)
    with ExitStack() as patches, redirect_stdout(StringIO()), library.attention_kept():
        for where, name, given in (
            (released.models, "get_hf_auto_model_class", lambda **_: loaded),
            (released.models, "load_valuehead_model", lambda **_: model),
            (released.engine, "FSDPCheckpointManager", lambda **_: None),
            (released.meshes, "init_device_mesh", mesh_of),
            (device_mesh, "init_device_mesh", mesh_of),
        ):
            patches.enter_context(patch.object(where, name, given))
        patches.enter_context(patch.dict(os.environ, rank))
        worker = released.workers.TrainingWorker(config)
        worker.reset()
        worker.set_loss_fn(loss)
        yield Worker(worker, model)
    flash.must_have_run()
