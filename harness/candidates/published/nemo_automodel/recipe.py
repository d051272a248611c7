"""The step of `TrainFinetuneRecipeForNextTokenPrediction`, without the setup before it."""

import gc
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from nemo_automodel.components.distributed.context_parallel import ContextParallelSharder
from nemo_automodel.components.distributed.mesh_utils import get_flat_mesh
from nemo_automodel.components.distributed.tp_replicas import synchronize_tp_replica_gradients
from nemo_automodel.components.distributed.utils import get_sync_ctx
from nemo_automodel.components.loggers.metric_logger import MetricsSample
from nemo_automodel.components.loss import utils as losses
from nemo_automodel.components.loss.chunked_ce import ChunkedCrossEntropy
from nemo_automodel.components.loss.linear_ce_base import LinearCrossEntropy
from nemo_automodel.components.moe.megatron.moe_utils import MoEAuxLossAutoScaler
from nemo_automodel.components.training import utils as training
from nemo_automodel.components.training.model_output_utils import get_final_hidden_states
from nemo_automodel.components.training.rng import ScopedRNG
from nemo_automodel.components.utils.model_utils import filter_forward_kwargs
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule

from harness.candidates.protocol import Rank
from harness.candidates.published.nemo_automodel.mesh import Mesh
from harness.candidates.published.wiring.packages import folder, lifted

Batch = dict[str, Any]

BASE = (
    "_dp_allreduce",
    "_get_cp_group_size",
    "_get_dp_group",
    "_get_dp_group_size",
    "_set_moe_aux_loss_backward_scale",
)
STEP = ("_forward_backward_step", "_run_train_optim_step", "_run_validation_epoch")
# A key of ours in a batch: token numbers, plus one because padding is zero.
NUMBERS = "harness_numbers"


def sharder(model: nn.Module, mesh: Mesh, batch: Batch, **options: Any) -> ContextParallelSharder:
    """Return the library's sharder, which also cuts the token numbers."""
    buffers = {NUMBERS: 1} if NUMBERS in batch else None
    return ContextParallelSharder(model, mesh, batch, extra_seq_buffers=buffers, **options)


class Optimizer:
    """An optimizer that does nothing, because the caller updates the weights."""

    param_groups = ({"lr": 0.0},)

    def step(self) -> None:
        """Leave gradients as an optimizer would see them."""

    def zero_grad(self) -> None:
        """Keep gradients, which are read afterwards."""


def recipe(
    rank: Rank, model: nn.Module, loss: nn.Module, mesh: Mesh, pad_id: int, *, defer: bool
) -> Any:
    """Return a recipe with only what the released methods read."""
    instance = type("Recipe", (), released_methods())()
    vars(instance).update(
        cfg=SimpleNamespace(get=lambda _, default=None: default),
        checkpointer=SimpleNamespace(maybe_wait_for_staging=lambda: None),
        device_mesh=mesh,
        dist_env=SimpleNamespace(device=rank.device, world_size=mesh.size(), is_main=False),
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


def released_methods() -> dict[str, Any]:
    """Return the recipe's methods, word for word, over the library's own functions."""
    recipes = folder("nemo_automodel.recipes")
    base = {
        "MoEAuxLossAutoScaler": MoEAuxLossAutoScaler,
        "dist": dist,
        "get_flat_mesh": get_flat_mesh,
    }
    step = {
        "ChunkedCrossEntropy": ChunkedCrossEntropy,
        "ContextParallelSharder": sharder,
        "FSDP2Config": None,
        "LinearCrossEntropy": LinearCrossEntropy,
        "MetricsSample": MetricsSample,
        "ScopedRNG": ScopedRNG,
        "_count_label_tokens": losses._count_label_tokens,
        "_get_loss_ignore_index": losses._get_loss_ignore_index,
        "calculate_loss": losses.calculate_loss,
        "count_tail_padding": training.count_tail_padding,
        "filter_forward_kwargs": filter_forward_kwargs,
        "gc": gc,
        "get_expert_tp_replication_factor": training.get_expert_tp_replication_factor,
        "get_final_hidden_states": get_final_hidden_states,
        "get_sync_ctx": get_sync_ctx,
        "nullcontext": nullcontext,
        "prepare_after_first_microbatch": training.prepare_after_first_microbatch,
        "prepare_for_final_backward": training.prepare_for_final_backward,
        "prepare_for_grad_accumulation": training.prepare_for_grad_accumulation,
        "prepare_lm_weight": losses.prepare_lm_weight,
        "scale_grads_and_clip_grad_norm": training.scale_grads_and_clip_grad_norm,
        "synchronize_tp_replica_gradients": synchronize_tp_replica_gradients,
        "time": SimpleNamespace(perf_counter=count(1).__next__),
    }
    finetuning = "TrainFinetuneRecipeForNextTokenPrediction"
    return {
        name: lifted(recipes / path, f"{owner}.{name}", given)
        for path, owner, names, given in (
            ("base_recipe.py", "BaseRecipe", BASE, base),
            ("llm/train_ft.py", finetuning, STEP, step),
        )
        for name in names
    }


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
