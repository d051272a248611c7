"""The step of `TrainFinetuneRecipeForNextTokenPrediction`, without the setup before it."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from harness.candidates.published.nemo_automodel.mesh import Mesh
from harness.candidates.published.nemo_automodel.released import SUPERVISED, Batch, methods


class Optimizer:
    """An optimizer that does nothing, because the caller updates the weights."""

    param_groups = ({"lr": 0.0},)

    def step(self) -> None:
        """Leave gradients as an optimizer would see them."""

    def zero_grad(self, **_: bool) -> None:
        """Keep gradients, which are read afterwards."""


def recipe(
    device: torch.device,
    model: nn.Module,
    loss: nn.Module,
    mesh: Mesh,
    pad_id: int,
    *,
    defer: bool,
    released: tuple[str, str] = SUPERVISED,
) -> Any:
    """Return a recipe with only what the released methods read."""
    instance = type("Recipe", (), methods(*released))()
    vars(instance).update(
        cfg=SimpleNamespace(get=lambda _, default=None: default),
        checkpointer=SimpleNamespace(maybe_wait_for_staging=lambda: None),
        device_mesh=mesh,
        dist_env=SimpleNamespace(device=device, world_size=mesh.size(), is_main=False),
        distributed_config=SimpleNamespace(defer_fsdp_grad_sync=defer),
        domain_mixture=None,
        loss_fn=loss,
        lr_scheduler=None,
        model_parts=[model],
        moe_mesh=None,
        optimizer=[Optimizer()],
        pp_enabled=False,
        step_scheduler=SimpleNamespace(step=0, epoch=0),
        te_fp8=None,
        timestamp=0.0,
        tokenizer=SimpleNamespace(pad_token_id=pad_id),
    )
    return instance


def trained_loss(released: Any, batches: list[Batch]) -> Tensor:
    """Run one step up to its gradients -> the loss of its log."""
    sample = released._run_train_optim_step(batches, None)
    return torch.tensor(sample.metrics["loss"])


def validated_loss(released: Any, batches: list[Batch]) -> Tensor:
    """Run a validation -> the loss that it logs."""
    sample = released._run_validation_epoch(batches)
    (model,) = released.model_parts
    model.train()
    # The caller updates weights after this; those that FSDP has gathered would be outdated.
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return torch.tensor(sample.metrics["val_loss"])
