"""The supervised step with the balance loss that the library's models of experts add."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.nemo_automodel.distillation import LOSSES
from harness.candidates.published.nemo_automodel.mesh import mesh_of
from harness.candidates.published.nemo_automodel.recipe import recipe
from harness.candidates.published.nemo_automodel.trained import PAD, log_of_step, prepared
from harness.recipes.batch import Batch


def balanced(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    loss_fn: str,
    activation_checkpointing: bool,
    defer_fsdp_grad_sync: bool,
    all_replicated: bool,
) -> Any:
    """Take the step of the recipe -> the loss that it logs, which has no balance loss."""
    axes = mesh_of(mesh, hybrid=all_replicated)
    ready = prepared(model, axes, force_hf=False, checkpoint=activation_checkpointing)
    device, loss = batches[0]["input_ids"].device, LOSSES[loss_fn]()
    run = recipe(device, ready, loss, axes, PAD, defer=defer_fsdp_grad_sync)
    return torch.tensor(log_of_step(run, batches, ready, model)["loss"])
