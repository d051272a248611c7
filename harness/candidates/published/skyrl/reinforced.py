"""Steps of SkyRL's policy and critic, which recipes judge.

Released methods of the trainer make one batch of the rows of all replicas, and each rank's worker
takes a step on its own part.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoModel

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.skyrl import library
from harness.candidates.published.skyrl.formulas import (
    ABOVE,
    BAD,
    BELOW,
    GOOD,
    LOW,
    SCALE,
)
from harness.candidates.published.skyrl.model import patched
from harness.candidates.published.skyrl.recipes import ENTROPY, KL
from harness.candidates.published.skyrl.rollouts import Rollout, rollouts
from harness.candidates.published.skyrl.trainer import Trainer
from harness.candidates.published.skyrl.worker import Ranks, Worker, config
from harness.recipes.batch import Batch

# By the names of a recipe, what is logged of a policy's step.
LOGGED = {
    "policy": "policy_loss",
    "kl": "policy_kl",
    "entropy": "policy_entropy",
    "clipped": "loss_metrics/clip_ratio",
}


def policy(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    by_tokens: bool = False,
    logs: bool = False,
    own: bool = False,
    **settings: Any,
) -> Any:
    """Take the policy's step of `RayPPOTrainer`.

    With `own`, the workers of the policy and of a reference, which both are the same model, give
    the log-probabilities of the old policy and of the reference. What is logged of micro-batches
    by tokens is averaged as they are packed; `logs` has the KL none the less.
    """
    rows = rollouts(batches, mesh)
    longest = max(len(each.ids_N) for each in rows)
    options = config(
        len(batches[0]["row"]),
        longest if by_tokens else -1,
        eps_clip_low=LOW,
        kl_loss_coef=KL,
        entropy_loss_coef=ENTROPY,
        max_seq_len=SCALE,
        sapo=SimpleNamespace(tau_pos=GOOD, tau_neg=BAD),
        cispo=SimpleNamespace(
            cispo_anchor="old", cispo_eps_clip_low=BELOW, cispo_eps_clip_high=ABOVE
        ),
        **settings,
    )
    model.set_attn_implementation("flash_attention_2")
    released = library.wrapper.HFModelWrapper(
        model,
        use_flash_attention_2=True,
        sequence_parallel_size=mesh["sp"].size(),
        remove_microbatch_padding=True,
    )
    kinds = {"policy": library.PolicyWorker} | ({"ref": library.RefWorker} if own else {})
    with patched(model, mesh, mesh["sp"].size(), of_parent=False):
        trainer = training(kinds, released, model, mesh, options, rows)
        log = {}
        if own:
            trainer.forward()
            log["old_logps"] = trainer.average("action_log_probs")
        logged = trainer.train("policy")
    flash.must_have_run()
    names = ("policy", "kl") if logs else ("policy",) if by_tokens else tuple(LOGGED)
    log |= {name: logged[LOGGED[name]] for name in names if LOGGED[name] in logged}
    return logged["final_loss"], log


def value(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    own: bool = False,
    **settings: Any,
) -> Any:
    """Take the critic's step of `RayPPOTrainer`; `own` values are from its worker."""
    rows = rollouts(batches, mesh)
    model.set_attn_implementation("flash_attention_2")
    released = critic(model, mesh["sp"].size())
    options = config(len(batches[0]["row"]), **settings)
    kinds = {"critic": library.CriticWorker}
    with patched(released, mesh, mesh["sp"].size(), of_parent=True):
        trainer = training(kinds, released, released, mesh, options, rows)
        log = {}
        if own:
            trainer.forward()
            trainer.data["returns"] = trainer.data["values"] + trainer.data["advantages"]
            log["old_values"] = trainer.average("values")
        logged = trainer.train("critic")
    flash.must_have_run()
    log |= {"values": logged["values_mean"], "clipped": logged["values_clipfrac"]}
    return logged["critic_loss"], log


def critic(model: Any, size: int) -> Any:
    """Return the released critic with the weights of a model that has a head of one number."""
    base: Any = AutoModel._model_mapping[type(model.config)]
    kind = library.wrapper._get_critic_model(
        base.__base__, base, sequence_parallel_size=size, remove_microbatch_padding=True
    )
    made = kind(model.config)
    made.model, made.value_head = model.model, model.score
    return made


def training(
    kinds: Mapping[str, Any],
    released: Any,
    module: Any,
    mesh: DeviceMesh,
    options: Any,
    rows: Sequence[Rollout],
) -> Trainer:
    """Return a trainer whose workers have a model, with gradient checkpointing and FSDP."""
    # In fp64 the harness keeps models from casting, but what backward computes again would cast.
    if next(module.parameters()).dtype != torch.float64:
        use = {"use_reentrant": False}
        released.gradient_checkpointing_enable(gradient_checkpointing_kwargs=use)
    world = dist.group.WORLD
    assert world is not None
    shard(module, DeviceMesh.from_group(world, mesh.device_type, mesh_dim_names=("fsdp",)))
    ranks = Ranks(world, mesh["dp"].get_group())
    workers = {role: Worker(kind, released, options, ranks) for role, kind in kinds.items()}
    return Trainer(workers, mesh, options, rows)


def shard(module: Any, mesh: DeviceMesh) -> None:
    dtype = next(module.parameters()).dtype
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    library.apply_fsdp2(
        module,
        {"mesh": mesh, "mp_policy": precision, "reshard_after_forward": True},
        SimpleNamespace(wrap_policy={}),
    )
