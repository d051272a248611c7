"""Steps of verl's actor and critic, which recipes judge.

Released methods of the trainer make of prompts and responses what a worker takes, and the worker
takes one step. Each rank is given the rows of its replica.
"""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.verl import released
from harness.candidates.published.verl.formulas import BAD, DRO, DUAL, GOOD, LOW, SCALE
from harness.candidates.published.verl.recipes import KL, TOP
from harness.candidates.published.verl.rollouts import average, rollouts
from harness.candidates.published.verl.settings import ENGINE
from harness.candidates.published.verl.trainer import Trainer
from harness.candidates.published.verl.worker import working
from harness.recipes.batch import Batch

# What the length of a micro-batch is rounded up to.
BUCKET = 8
# Metrics of the recipe, as the trainer logs them.
LOGGED = {
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy_loss",
    "distillation": "actor/distillation/loss",
}


def actor(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    on_policy: bool = False,
    distilled: bool = False,
    loss_mode: str,
    **settings: Any,
) -> Any:
    """Take the step of `RayPPOTrainer._update_actor`.

    With `on_policy`, `_compute_old_log_prob` and `_compute_ref_log_prob` give the
    log-probabilities of the old policy and of the reference, which both are the same model.
    """
    rows = rollouts(batches)
    of_engine = {name: settings.pop(name) for name in ENGINE}
    config = released.config.FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        ppo_mini_batch_size=len(rows) * mesh["dp"].size(),
        clip_ratio_low=LOW,
        clip_ratio_c=DUAL,
        tau_pos=GOOD,
        tau_neg=BAD,
        kl_loss_coef=KL,
        loss_scale_factor=SCALE,
        policy_loss=released.config.PolicyLossConfig(loss_mode=loss_mode, dro_beta=DRO),
        **settings,
    )
    loss = partial(released.losses.ppo_loss, config=config)
    taught = distillation(batches[0]["teacher_logits"].shape[-1]) if distilled else None
    if distilled:
        loss = partial(
            released.workers.distillation_ppo_loss, config=config, distillation_config=taught
        )
    with working(
        model, mesh, "language_model", loss, **options(batches, mesh, **of_engine)
    ) as worker:
        trainer = Trainer(worker, mesh, config, taught)
        own = {}
        if on_policy:
            old, _ = trainer.call("_compute_old_log_prob", rows)
            rows = rows.union(old).union(trainer.call("_compute_ref_log_prob", rows))
            own = {"old_logps": "old_log_probs", "old_entropy": "entropys"}
        logged = trainer.call("_update_actor", rows)
    log = {name: logged[key] for name, key in LOGGED.items() if key in logged}
    return logged["actor/loss"], log | {
        name: average(rows, key, mesh) for name, key in own.items()
    }


def distillation(vocabulary: int) -> Any:
    """Return what adds the forward KL of a teacher's likeliest tokens to the actor's loss."""
    of_loss = released.config.DistillationLossConfig(
        loss_mode="forward_kl_topk", topk=min(TOP, vocabulary), use_policy_gradient=False
    )
    return SimpleNamespace(enabled=True, distillation_loss=of_loss)


def critic(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    own: bool = False,
    **settings: Any,
) -> Any:
    """Take the step of `RayPPOTrainer._update_critic`; `own` values are from `_compute_values`."""
    rows = rollouts(batches)
    of_engine = {name: settings.pop(name) for name in ENGINE}
    config = released.config.FSDPCriticConfig(
        strategy="fsdp2",
        ppo_micro_batch_size_per_gpu=1,
        ppo_mini_batch_size=len(rows) * mesh["dp"].size(),
        shuffle=False,
        loss_scale_factor=SCALE,
        **settings,
    )
    loss = partial(released.losses.value_loss, config=config)
    with working(
        model, mesh, "value_model", loss, **options(batches, mesh, **of_engine)
    ) as worker:
        trainer = Trainer(worker, mesh, config)
        if own:
            rows = rows.union(trainer.call("_compute_values", rows))
            rows.batch["returns"] = rows.batch["values"] + rows.batch["advantages"]
        logged = trainer.call("_update_critic", rows)
    return logged["critic/loss"], {"old_values": average(rows, "values", mesh)} if own else {}


def options(
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    use_dynamic_bsz: bool,
    enable_gradient_checkpointing: bool,
    pad_to_length: bool,
) -> dict[str, Any]:
    """Return how an engine makes micro-batches: so many rows, or rows of so many tokens."""
    given = {
        "use_dynamic_bsz": use_dynamic_bsz,
        "enable_gradient_checkpointing": enable_gradient_checkpointing,
        "pad_to_length": pad_to_length,
        "pad_to_length_bucket": BUCKET,
    }
    if not use_dynamic_bsz:
        rows = len(batches[0]["row"])
        return given | {"micro_batch_size_per_gpu": rows, "infer_micro_batch_size_per_gpu": rows}
    longest = torch.stack([batch["attention_mask"].sum(1).max() for batch in batches]).max()
    dist.all_reduce(longest, dist.ReduceOp.MAX, mesh["dp"].get_group())
    budget = -(-int(longest) // mesh["sp"].size())
    return given | {"max_token_len_per_gpu": budget, "infer_max_token_len_per_gpu": budget}
