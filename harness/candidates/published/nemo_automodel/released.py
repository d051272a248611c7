"""Methods of the release's recipes, word for word, over the library's own functions."""

import gc
from contextlib import nullcontext
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

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
from torch import distributed as dist
from torch import nn

from harness.candidates.published.nemo_automodel.mesh import Mesh
from harness.candidates.published.wiring.packages import folder, lifted

Batch = dict[str, Any]
Methods = dict[str, Any]

BASE = (
    "_dp_allreduce",
    "_get_cp_group_size",
    "_get_dp_group",
    "_get_dp_group_size",
    "_set_moe_aux_loss_backward_scale",
)
STEP = ("_forward_backward_step", "_run_train_optim_step")
SUPERVISED = "llm/train_ft.py", "TrainFinetuneRecipeForNextTokenPrediction"
DISTILLING = "llm/kd.py", "KnowledgeDistillationRecipeForNextTokenPrediction"
DISTILLING_IMAGES = "vlm/kd.py", "KnowledgeDistillationRecipeForVLM"
# A key of ours in a batch: token numbers, plus one because padding is zero.
NUMBERS = "harness_numbers"


def sharder(model: nn.Module, mesh: Mesh, batch: Batch, **options: Any) -> ContextParallelSharder:
    """Return the library's sharder, which also cuts the token numbers."""
    if NUMBERS in batch:
        options["extra_seq_buffers"] = {NUMBERS: 1}
    return ContextParallelSharder(model, mesh, batch, **options)


def _sharder_of_now(*given: Any, **options: Any) -> Any:
    """Find `sharder` only when it is called, because a mend replaces it."""
    return sharder(*given, **options)


def functions() -> dict[str, Any]:
    """Return what the modules of the recipes import."""
    of_training = (
        "ScopedModuleOffloading",
        "count_tail_padding",
        "get_expert_tp_replication_factor",
        "prepare_after_first_microbatch",
        "prepare_for_final_backward",
        "prepare_for_grad_accumulation",
        "scale_grads_and_clip_grad_norm",
    )
    of_losses = (
        "_count_label_tokens",
        "_get_loss_ignore_index",
        "_normalize_kd_labels",
        "calculate_loss",
        "prepare_lm_weight",
    )
    return {
        **{name: getattr(training, name) for name in of_training},
        **{name: getattr(losses, name) for name in of_losses},
        "ChunkedCrossEntropy": ChunkedCrossEntropy,
        "ContextParallelSharder": _sharder_of_now,
        "FSDP2Config": None,
        "LinearCrossEntropy": LinearCrossEntropy,
        "MetricsSample": MetricsSample,
        "ScopedRNG": ScopedRNG,
        "filter_forward_kwargs": filter_forward_kwargs,
        "gc": gc,
        "get_final_hidden_states": get_final_hidden_states,
        "get_sync_ctx": get_sync_ctx,
        "nullcontext": nullcontext,
        "synchronize_tp_replica_gradients": synchronize_tp_replica_gradients,
        "time": SimpleNamespace(perf_counter=count(1).__next__),
    }


@cache
def methods(path: str, owner: str) -> Methods:
    """Return the methods of a recipe, and those of the class below all recipes."""
    recipes = folder("nemo_automodel.recipes")
    base = {
        "MoEAuxLossAutoScaler": MoEAuxLossAutoScaler,
        "dist": dist,
        "get_flat_mesh": get_flat_mesh,
    }
    validation = ("_run_validation_epoch",) if (path, owner) == SUPERVISED else ()
    given = functions()
    return {
        **{name: lifted(recipes / "base_recipe.py", f"BaseRecipe.{name}", base) for name in BASE},
        **{
            name: lifted(recipes / path, f"{owner}.{name}", given) for name in (*STEP, *validation)
        },
    }
