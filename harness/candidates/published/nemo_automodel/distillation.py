"""The step of the library's recipes for knowledge distillation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from nemo_automodel.components.loss.chunked_ce import ChunkedCrossEntropy
from nemo_automodel.components.loss.kd_loss import KDLoss
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.nemo_automodel.mesh import mesh_of
from harness.candidates.published.nemo_automodel.recipe import recipe
from harness.candidates.published.nemo_automodel.recipes import STUDENT, TEACHER
from harness.candidates.published.nemo_automodel.trained import PAD, log_of_step, prepared
from harness.recipes.batch import Batch

# `loss_fn` by a name for each; three tokens at a time, so that there are several chunks.
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "masked": MaskedCrossEntropy,
    "chunked": partial(ChunkedCrossEntropy, chunk_len=3, compile=False),
}
# By the names of the recipe, what is logged.
LOGGED = {"loss": "loss", "ce": "ce_loss", "kd": "kd_loss"}


def distilled(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    released: tuple[str, str],
    kd_ratio: float,
    temperature: float,
    loss_fn: str,
    fp32_upcast: bool,
    chunk_size: int,
    ignore_index: int,
    force_hf: bool,
    activation_checkpointing: bool,
    defer_fsdp_grad_sync: bool,
    all_replicated: bool,
) -> Any:
    """Take the step of a released recipe -> what it logs."""
    axes = mesh_of(mesh, hybrid=all_replicated)
    prepare = partial(prepared, axes=axes, force_hf=force_hf, checkpoint=activation_checkpointing)
    student, teacher = prepare(model[STUDENT]), prepare(model[TEACHER])
    teacher.eval().requires_grad_(False)
    run = recipe(
        batches[0]["input_ids"].device,
        student,
        LOSSES[loss_fn](),
        axes,
        PAD,
        defer=defer_fsdp_grad_sync,
        released=released,
    )
    vars(run).update(
        teacher_model=teacher,
        kd_loss_fn=KDLoss(
            ignore_index=ignore_index,
            temperature=temperature,
            fp32_upcast=fp32_upcast,
            chunk_size=chunk_size,
        ),
        kd_ratio=kd_ratio,
        _kd_loss_buffer=[],
        _ce_loss_buffer=[],
        _offload_teacher_model=False,
    )
    metrics = log_of_step(run, batches, student, model[STUDENT])
    logged = {name: torch.tensor(metrics[key]) for name, key in LOGGED.items()}
    if kd_ratio == 1:
        del logged["ce"]
    return logged.pop("loss"), logged
