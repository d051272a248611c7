"""OpenRLHF's modules and methods, without what their packages import beside them."""

import dataclasses
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from transformers import AutoModel

from harness.candidates.published.flash_stand_in import blocks, flash
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted


class Gather(torch.autograd.Function):
    """The `all_gather` of flash_attn.utils.distributed; backward sums over ranks and scatters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = x.new_empty(group.size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(gathered, x.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient.new_empty(len(gradient) // ctx.group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=ctx.group)
        return own, None


def module(name: str, **names: Any) -> ModuleType:
    """Return a module that holds these names and no others, and may have submodules."""
    made = ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    vars(made).update(names)
    return made


@contextmanager
def importable(*modules: ModuleType) -> Iterator[None]:
    """While this lasts, let these modules be imported; at the end, remove them."""
    sys.modules.update({each.__name__: each for each in modules})
    try:
        yield
    finally:
        for each in modules:
            del sys.modules[each.__name__]


blocks.install()
flash.give_to_transformers()
sys.modules.update(
    {
        each.__name__: each
        for each in (
            module("flash_attn.utils"),
            module("flash_attn.utils.distributed", all_gather=Gather.apply),
        )
    }
)
bare_packages(
    "openrlhf",
    "openrlhf.models",
    "openrlhf.utils",
    "openrlhf.trainer",
    "openrlhf.trainer.ppo_utils",
)
# Without LoRA and ZeRO's leaves, nothing in these is called.
with importable(
    module("deepspeed"),
    module("peft", LoraConfig=None, TaskType=None, get_peft_model=None),
    module("peft.tuners"),
    module("peft.tuners.lora", LoraLayer=None),
):
    actor: Any = import_module("openrlhf.models.actor")
    losses: Any = import_module("openrlhf.models.loss")
    models: Any = import_module("openrlhf.models.model")
    utils: Any = import_module("openrlhf.models.utils")
ring: Any = import_module("openrlhf.models.ring_attn_utils")
vars(sys.modules["openrlhf.models"]).update(
    {name: getattr(losses, name) for name in ("DPOLoss", "LogExpLoss", "PairWiseLoss", "SFTLoss")}
)
SFTTrainer: Any = import_module("openrlhf.trainer.sft_trainer").SFTTrainer
DPOTrainer: Any = import_module("openrlhf.trainer.dpo_trainer").DPOTrainer
RewardModelTrainer: Any = import_module("openrlhf.trainer.rm_trainer").RewardModelTrainer
experience: Any = import_module("openrlhf.trainer.ppo_utils.experience")
buffers: Any = import_module("openrlhf.trainer.ppo_utils.replay_buffer")
loss_utils: Any = import_module("openrlhf.utils.loss_utils")

STRATEGY = folder("openrlhf.utils") / "deepspeed" / "deepspeed.py"
PPO = {
    name: folder("openrlhf.trainer") / "ray" / f"ppo_{name.lower()}.py"
    for name in ("Actor", "Critic")
}


def methods_of_strategy(world: ProcessGroup) -> dict[str, Any]:
    """Return the strategy's methods by name; their "all ranks" are the ranks of `world`."""
    given = {
        "Actor": actor.Actor,
        "dist": SimpleNamespace(
            ReduceOp=dist.ReduceOp,
            all_reduce=lambda x, op: dist.all_reduce(x, op, group=world),
            get_rank=dist.get_rank,
        ),
        "get_ring_attn_group": ring.get_ring_attn_group,
        "nn": torch.nn,
        "optim": torch.optim,
        "set_ring_attn_group": ring.set_ring_attn_group,
    }
    names = (
        *("all_reduce", "backward", "get_grad_norm", "optimizer_step"),
        *("ring_attn_group", "setup_ring_attn"),
    )
    return {name: lifted(STRATEGY, f"DeepspeedStrategy.{name}", given) for name in names}


def methods_of_ppo_trainer(loader: Callable[..., Any], of: str = "Actor") -> dict[str, Any]:
    """Return `ppo_train` and `training_step`, with `loader` in the place of torch's DataLoader."""
    given = {
        "DataLoader": loader,
        "Experience": experience.Experience,
        "aggregate_loss": losses.aggregate_loss,
        "compute_approx_kl": utils.compute_approx_kl,
        "fields": dataclasses.fields,
        "get_loss_batch_info": loss_utils.get_loss_batch_info,
        "iter_grad_accum_global_norm": loss_utils.iter_grad_accum_global_norm,
        "masked_mean": utils.masked_mean,
        "tqdm": import_module("tqdm").tqdm,
    }
    names = ("ppo_train", "training_step")
    return {name: lifted(PPO[of], f"{of}PPOTrainer.{name}", given) for name in names}


@contextmanager
def on_a_cpu() -> Iterator[None]:
    """While this lasts, the current CUDA device, to which tensors are moved, is the CPU."""
    with patch.object(torch.cuda, "current_device", lambda: "cpu"):
        yield


def replay_buffer(*, dynamic: bool, packed: bool = True) -> Any:
    """Return a replay buffer; it reads a device that it would use only for sampling."""
    with patch.object(torch.cuda, "current_device", lambda: 0):
        return buffers.NaiveReplayBuffer(1, packing_samples=packed, dynamic_batch=dynamic)


def regression(
    kind: str, model: Any, *, packed: bool, normalized_by: tuple[float, float] | None = None
) -> Any:
    """Return the released reward model or critic (`kind`), with the parameters of a model.

    A critic can be normalized by a mean and a deviation, which it reads from its configuration.
    """
    base: Any = AutoModel._model_mapping[type(model.config)]
    make = getattr(models, f"_get_{kind}_model")
    model.config.normalize_reward = normalized_by is not None
    if normalized_by is not None:
        model.config.mean, model.config.std = normalized_by
    released = make(base.__base__, base, packing_samples=packed)(model.config)
    released.model, released.score = model.model, model.score
    return released.train()
