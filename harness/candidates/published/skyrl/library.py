"""The parts of skyrl that a step needs, without what its modules import beside them."""

import math
import sys
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import distributed as dist
from torch.distributed import fsdp

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted
from harness.candidates.published.wiring.stand_ins import Replacing

# skyrl's modules look for flash-attn when they are imported. transformers would do so too, and
# look for more than the stand-in has, so it is imported first.
import_module("transformers.modeling_utils")
flash.give_to_transformers()
TRAIN = "skyrl.backends.skyrl_train"
bare_packages(
    *("skyrl", "skyrl.backends", TRAIN, f"{TRAIN}.distributed", f"{TRAIN}.utils"),
    *(f"{TRAIN}.workers", "skyrl.train", "skyrl.train.dataset"),
)


def _put_in_place(name: str, **names: Any) -> None:
    """Register a module with these names and no others, unless there is one."""
    module = ModuleType(name)
    vars(module).update(names)
    sys.modules.setdefault(name, module)


# Cases have no adapters, so nothing of peft is called.
_put_in_place("peft", LoraConfig=None, TaskType=None, get_peft_model=None)
_put_in_place("peft.tuners")
_put_in_place("peft.tuners.lora", LoraLayer=None)
# The module with the base class of strategies imports code for checkpoints.
_put_in_place(f"{TRAIN}.distributed.strategy", DistributedStrategy=object)

# Only now can they be imported.
wrapper: Any = import_module(f"{TRAIN}.workers.model_wrapper")
ulysses: Any = import_module(f"{TRAIN}.distributed.ulysses")
patches: Any = import_module(f"{TRAIN}.distributed.ulysses.monkey_patch")
slicing: Any = import_module(f"{TRAIN}.distributed.ulysses.utils")
batches: Any = import_module(f"{TRAIN}.training_batch")
worker_utils: Any = import_module(f"{TRAIN}.workers.worker_utils")
torch_utils: Any = import_module(f"{TRAIN}.utils.torch_utils")
preprocess: Any = import_module("skyrl.train.dataset.preprocess")


_GIVEN: dict[str, Any] = {
    **vars(torch_utils),
    **vars(worker_utils),
    **vars(batches),
    "defaultdict": defaultdict,
    "dist": dist,
    "DataT": Any,
    "nn": torch.nn,
    "np": np,
    # The device of this process is a CPU, and nothing is cast.
    "torch": Replacing(
        torch,
        autocast=lambda **_: nullcontext(),
        cuda=SimpleNamespace(current_device=lambda: "cpu"),
    ),
}


def _lifted(path: str, name: str, **given: Any) -> Any:
    return lifted(folder("skyrl") / path, name, {**_GIVEN, **given})


def _losses() -> dict[str, Any]:
    """Return functions of losses: of a policy's by their registered names, and others."""
    path = "backends/skyrl_train/utils/ppo_utils.py"
    given: dict[str, Any] = {
        "AlgorithmConfig": object,
        "DictConfig": object,
        # The registry of losses goes through ray.
        "register_policy_loss": lambda _: lambda function: function,
        "PolicyLossType": MagicMock(),
        "reduce_loss": _lifted(path, "reduce_loss"),
        "apply_off_policy_correction": _lifted(
            "backends/skyrl_train/utils/off_policy_correction_utils.py",
            "apply_off_policy_correction",
            DictConfig=object,
        ),
    }
    names = {
        "cross_entropy": "cross_entropy_loss",
        "cispo": "compute_policy_loss_cispo",
        "regular": "ppo_policy_loss",
        "dual_clip": "ppo_policy_loss",
        "gspo": "gspo_policy_loss",
        "sapo": "sapo_policy_loss",
        "importance_sampling": "importance_sampling_loss",
        "critic": "ppo_critic_loss",
        "kl": "compute_approx_kl",
        "reduction": "apply_loss_reduction_to_advantages_minibatch",
    }
    return {key: _lifted(path, name, **given) for key, name in names.items()}


losses = _losses()

_STRATEGY = "backends/skyrl_train/distributed/strategy.py"
all_reduce = _lifted(_STRATEGY, "DistributedStrategy.all_reduce")
backward = _lifted(
    "backends/skyrl_train/distributed/fsdp_strategy.py",
    "FSDPStrategy.backward",
    optim=torch.optim,
)
apply_fsdp2 = _lifted(
    "backends/skyrl_train/distributed/fsdp_utils.py",
    "apply_fsdp2",
    CPUOffloadPolicy=fsdp.CPUOffloadPolicy,
    DictConfig=object,
    FSDPConfig=object,
    fully_shard=fsdp.fully_shard,
)

_WORKER = "backends/skyrl_train/workers/worker.py"
monkey_patch = _lifted(
    _WORKER,
    "DistributedTorchRayActor._seq_parallel_monkey_patch",
    PreTrainedModel=object,
    apply_monkey_patch=ulysses.apply_monkey_patch,
    set_ulysses_sequence_parallel_group=ulysses.set_ulysses_sequence_parallel_group,
)


class Actor:
    """The base class of workers, in the place of an actor of ray."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg


_GIVEN_TO_WORKERS: dict[str, Any] = {
    "Worker": Actor,
    "WorkerOutput": SimpleNamespace,
    "DistributedStrategy": object,
    "LRScheduler": object,
    "MeshRank": object,
    "Optimizer": object,
    "OmegaConf": None,
    "PolicyLossRegistry": losses,
    "compute_approx_kl": losses["kl"],
    "ppo_critic_loss": losses["critic"],
}
PolicyWorker = _lifted(_WORKER, "PolicyWorkerBase", **_GIVEN_TO_WORKERS)
CriticWorker = _lifted(_WORKER, "CriticWorkerBase", **_GIVEN_TO_WORKERS)

RefWorker = _lifted(_WORKER, "RefWorkerBase", **_GIVEN_TO_WORKERS)

# The collator imports this function when it is called.
_put_in_place(
    "skyrl.train.sft_trainer",
    collate_sft_batch=_lifted("train/sft_trainer.py", "collate_sft_batch"),
)
DefaultCollator = _lifted("train/dataset/collators.py", "DefaultCollator")

_DISPATCH = "backends/skyrl_train/distributed/dispatch.py"
_GIVEN_TO_DISPATCH: dict[str, Any] = {
    # What is put into the store of a cluster stays here.
    "ray": SimpleNamespace(put=lambda chunk: chunk),
    **dict.fromkeys(("ActorInfo", "Dispatch", "ObjectRef"), object),
    "dataclass": dataclass,
    "field": field,
}
MeshDispatch = _lifted(_DISPATCH, "MeshDispatch", **_GIVEN_TO_DISPATCH)
MeshRank = _lifted(_DISPATCH, "MeshRank", **_GIVEN_TO_DISPATCH)
WorkerOutput = _lifted(_DISPATCH, "WorkerOutput", **_GIVEN_TO_DISPATCH)


_GIVEN_TO_TRAINER: dict[str, Any] = {
    **vars(preprocess),
    "GeneratorOutput": dict,
    "SAMPLE_SUPPORT_FIELD": worker_utils.SAMPLE_SUPPORT_FIELD,
    "apply_loss_reduction_to_advantages_minibatch": losses["reduction"],
    # It does nothing without log-probabilities of a sampler.
    "finalize_minibatch_rollout_logprob_diff_std": lambda _: None,
    "loss_fn_outputs_to_tensor": _lifted(_DISPATCH, "loss_fn_outputs_to_tensor"),
    "logger": MagicMock(),
    "math": math,
}


def of_trainer(name: str) -> Any:
    """Return a method of `RayPPOTrainer`, whose module imports what schedules a cluster."""
    return _lifted("train/trainer.py", f"RayPPOTrainer.{name}", **_GIVEN_TO_TRAINER)


normalize_advantages = of_trainer("_normalize_advantages")
