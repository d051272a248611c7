"""Steps of AReaL's actor and critic, which recipes judge.

The engine of each rank is given the trajectories of its replica, as a controller hands them out,
and updates its model by the calls that the trainer makes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.areal import configured, library
from harness.candidates.published.areal.advantages import KL, VERSION, versions
from harness.candidates.published.areal.formulas import BAD, GOOD, LOW
from harness.candidates.published.areal.recipes import TEACHER
from harness.candidates.published.areal.rollouts import average, before, trajectories
from harness.candidates.published.areal.settings import NORMS, REJECTIONS
from harness.candidates.published.flash_stand_in import flash
from harness.recipes.batch import Batch

# By the names of a recipe, what is logged of a step.
OF_ACTOR = {
    "actor": "ppo_actor/update/actor_loss/avg",
    "kl": "ppo_actor/update/approx_kl/avg",
    "entropy": "ppo_actor/update/entropy/avg",
    "clipped": "ppo_actor/update/clip_ratio/avg",
    "distillation": "ppo_actor/update/rkl_loss/avg",
}
OF_REWARDS = {
    "loss": OF_ACTOR["actor"],
    "advantages": "ppo_actor/advantages/avg",
    "rewards": "ppo_actor/final_reward/avg",
    "clipped": OF_ACTOR["clipped"],
}
OF_CRITIC = {
    "loss": "ppo_critic/critic_loss/avg",
    "values": "ppo_critic/new_value/avg",
    "clipped": "ppo_critic/clip_ratio/avg",
}


class Actor(library.fsdp_engine.FSDPPPOActor):  # type: ignore[misc]
    """The published engine of an actor, on a given model."""

    given: Any

    def _create_llm_actor_or_critic(self) -> Any:
        return self.given


class Critic(library.fsdp_engine.FSDPPPOCritic):  # type: ignore[misc]
    """The published engine of a critic, on a given model."""

    given: Any

    def _create_llm_actor_or_critic(self) -> Any:
        return self.given


def actor(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    gradient_checkpointing: bool,
    rejection_sampling: str | None,
    teacher: float | None,
    **settings: Any,
) -> Any:
    """Take the step of `ppo_update` on advantages that are given."""
    rows = trajectories(batches)
    old = "proximal_logps" if settings["use_decoupled_loss"] else "old_logps"
    for row in rows:
        row["prox_logp"] = before(row[old])
        row["logprobs"] = before(row["old_logps"])
        row["advantages"] = before(row["advantages"])
        row["loss_mask"] = before(row["loss_mask"]).to(row["advantages"])
        # These are only logged, but for the reward, of which nothing is left by then.
        row["rewards"] = torch.zeros(1).to(row["advantages"])
        row["kl_rewards"] = row["tot_rewards"] = torch.zeros_like(row["advantages"])
        if teacher is not None:
            row["teacher_logp"] = before(row["teacher_logps"])
            row |= {"rl_loss_weight": teacher, "distill_loss_weight": TEACHER}
        for name in ("old_logps", "proximal_logps", "teacher_logps"):
            row.pop(name, None)
    rejection = REJECTIONS[rejection_sampling]
    config = library.arguments.PPOActorConfig(
        **options(batches, mesh, gradient_checkpointing),
        eps_clip=LOW,
        sapo_tau_pos=GOOD,
        sapo_tau_neg=BAD,
        rejection_sampling=library.arguments.RejectionSamplingConfig(**rejection)
        if rejection
        else None,
        **settings,
    )
    with training(Actor, model, mesh, config) as engine:
        engine.ppo_update(rows)
        logged = engine.export_stats()
    log = {name: logged[key] for name, key in OF_ACTOR.items() if key in logged}
    if teacher is None:
        return log["actor"], log
    # It logs the two parts of this loss, and not the loss.
    return teacher * log["actor"] + TEACHER * log["distillation"], log


def rewarded(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    gradient_checkpointing: bool,
    reward_norm: str | None,
    adv_norm: str | None,
    **settings: Any,
) -> Any:
    """Take the steps from rewards to `ppo_update` in the trainer's order."""
    rows = trajectories(batches)
    for row in rows:
        row["logprobs"] = row.pop("old_logps")
        # A reference says of each token what comes next, as `compute_logp` of its engine does.
        row["ref_logp"] = before(row.pop("reference_logps"))
        if "policy_versions" in row:
            has_one = row["loss_mask"].bool()
            row["versions"] = versions(row.pop("policy_versions")).int().where(has_one, -1)
    norms = {
        name: library.arguments.NormConfig(**NORMS[norm])
        for name, norm in (("reward_norm", reward_norm), ("adv_norm", adv_norm))
        if norm is not None
    }
    config = library.arguments.PPOActorConfig(
        **options(batches, mesh, gradient_checkpointing),
        eps_clip=LOW,
        kl_ctl=KL,
        **norms,
        **settings,
    )
    with training(Actor, model, mesh, config) as engine:
        engine.set_version(VERSION)
        if config.should_compute_prox_logp():
            for row, logps in zip(rows, engine.compute_logp(rows), strict=True):
                row["prox_logp"] = logps
        engine.ppo_update(engine.compute_advantages(rows))
        logged = engine.export_stats()
    log = {name: logged[key] for name, key in OF_REWARDS.items()}
    if adv_norm is not None:
        del log["advantages"]
    return log.pop("loss"), log


def critic(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    own: bool = False,
    gradient_checkpointing: bool,
    eps_clip: float,
) -> Any:
    """Take the step of the critic's `ppo_update`; `own` values are from `compute_values`."""
    rows = trajectories(batches)
    config = library.arguments.PPOCriticConfig(
        **options(batches, mesh, gradient_checkpointing), is_critic=True, eps_clip=eps_clip
    )
    with training(Critic, model, mesh, config) as engine:
        log = {}
        for row in rows:
            row["loss_mask"] = before(row["loss_mask"])
        if own:
            for row, values in zip(rows, engine.compute_values(rows), strict=True):
                row["values"], row["advantages"] = values, before(row["advantages"])
                row["returns"] = values + row["advantages"]
            log["old_values"] = average(rows, "values", mesh)
        else:
            for row in rows:
                row["values"], row["returns"] = (
                    before(row.pop("old_values")),
                    before(row["returns"]),
                )
        engine.ppo_update(rows)
        logged = engine.export_stats()
    log |= {name: logged[key] for name, key in OF_CRITIC.items()}
    return log.pop("loss"), log


def options(
    batches: Sequence[Batch], mesh: DeviceMesh, gradient_checkpointing: bool
) -> dict[str, Any]:
    """Return the options of an engine; there is one minibatch for each update."""
    common = configured.options(
        mesh["dp"].size(),
        mesh["sp"].size(),
        attention="flash_attention_2",
        micro_batches=len(batches),
        checkpoint=gradient_checkpointing,
    )
    return common | {"ppo_n_minibatches": 1}


@contextmanager
def training(kind: Any, model: Any, mesh: DeviceMesh, config: Any) -> Iterator[Any]:
    """While this lasts, an engine has the model, in the dtype of its weights."""
    dtype = next(model.parameters()).dtype
    # A configuration refuses fp64.
    config.dtype = config.grad_reduce_dtype = str(dtype).removeprefix("torch.")
    model.set_attn_implementation(config.attn_impl)
    with configured.given(model):
        engine = kind(config)
    engine.given = model
    with library.computing_in(dtype):
        place = mesh["dp"].get_local_rank(), mesh["sp"].get_local_rank()
        configured.initialize(engine, mesh["dp"].size(), mesh["sp"].size(), place, 1)
        yield engine
    flash.must_have_run("flash_attn_varlen_func")
