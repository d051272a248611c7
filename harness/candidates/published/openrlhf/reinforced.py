"""Steps of OpenRLHF's trainers of PPO that recipes judge: the actor's and the critic's.

Legend: A columns of actions.
"""

from collections.abc import Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.openrlhf import library
from harness.candidates.published.openrlhf.formulas import LOW
from harness.candidates.published.openrlhf.judged import MASK, SCHEDULER, Stepping
from harness.candidates.published.openrlhf.recipes import DEVIATION, KL, MEAN
from harness.candidates.published.openrlhf.settings import CORRECTIONS
from harness.candidates.published.openrlhf.strategy import actor_of
from harness.candidates.published.wiring.rows import IGNORED
from harness.recipes.batch import Batch

# By the names of a recipe, what is logged.
LOGGED = {
    "kl": "ppo_kl",
    "clipped": "ppo_clip_ratio",
    "mismatch": "vllm_kl",
    "bounded": "is_filter_ratio",
}


def critic(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    value_clip: float,
    normalize_enable: bool,
    dynamic_batch_enable: bool,
    **training: bool,
) -> Any:
    """Take the step of `CriticPPOTrainer.ppo_train`."""
    stepping = Stepping(model, batches, mesh, dynamic=dynamic_batch_enable, **training)
    saved = (MEAN, DEVIATION) if normalize_enable else None
    released = library.regression("critic", model, packed=stepping.packed, normalized_by=saved)
    args = of_ppo(batches, stepping, dynamic=dynamic_batch_enable)
    with stepping.taking(released, **args) as (engine, strategy):
        trainer = Reinforcing("Critic", strategy)
        for batch in batches:
            made = {"values": batch["old_values"][:, 1:], "returns": batch["returns"][:, 1:]}
            trainer.remember(batch, **made)
        parts = {"critic": engine, "critic_loss_fn": library.losses.ValueLoss(value_clip)}
        trainer.step("critic", parts)
    return engine.loss


def actor(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    policy_loss_type: str,
    loss_agg_mode: str,
    eps_clip_high: float,
    dual_clip: float | None,
    is_correction: str,
    kl_loss: str | None,
    unbiased_gradient: bool,
    entropy_coef: float | None,
    temperature: float,
    dynamic_batch_enable: bool = False,
    aux_loss_coef: float = 0.0,
    **training: bool,
) -> Any:
    """Take the step of `ActorPPOTrainer.ppo_train`."""
    stepping = Stepping(model, batches, mesh, dynamic=dynamic_batch_enable, **training)
    args = of_ppo(batches, stepping, dynamic=dynamic_batch_enable)
    args["actor"] = SimpleNamespace(aux_loss_coef=aux_loss_coef, entropy_coef=entropy_coef)
    if kl_loss is not None:
        args["algo"].kl.use_loss, args["algo"].kl.estimator = True, kl_loss
        args["algo"].kl.unbiased_gradient = unbiased_gradient
    correction = CORRECTIONS[is_correction]
    policy_loss = library.losses.PolicyLoss(
        clip_eps_low=LOW,
        clip_eps_high=eps_clip_high,
        dual_clip=dual_clip,
        token_level_loss=loss_agg_mode == "token-mean",
        policy_loss_type=policy_loss_type,
        **{f"is_correction_{name}": value for name, value in correction.items()},
    )
    with stepping.taking(model, **args) as (engine, strategy):
        trainer = Reinforcing("Actor", strategy)
        for batch in batches:
            made = {
                "action_log_probs": batch["old_logps"][:, 1:],
                "base_action_log_probs": batch["reference_logps"][:, 1:],
                "rollout_log_probs": batch["rollout_logps"][:, 1:],
                "advantages": batch["advantages"][:, 1:],
            }
            trainer.remember(batch, **made)
        released = actor_of(engine, packed=stepping.packed, temperature=temperature)
        parts = {"actor": released, "actor_loss_fn": policy_loss, "ema_model": None}
        logged = trainer.step("actor", parts, KL)
    log = {name: logged[key] for name, key in LOGGED.items() if key in logged}
    if correction.get("level") == "seq":
        # It logs the share of rows.
        del log["bounded"]
    return engine.loss, log


class Reinforcing:
    """A trainer of PPO with only what the released methods read."""

    dataloader_pin_memory = False
    max_epochs = 1

    def __init__(self, of: str, strategy: Any) -> None:
        self.released = library.methods_of_ppo_trainer(self.load, of)
        self.strategy, self.args = strategy, strategy.args
        self.aux_loss = self.args.actor.aux_loss_coef > 0
        self.is_dynamic = self.args.train.dynamic_batch_enable
        self.replay_buffer = library.replay_buffer(
            dynamic=self.is_dynamic, packed=self.args.ds.packing_samples
        )
        # How many rows each micro-batch has.
        self.sizes: list[int] = []

    def remember(self, batch: Batch, **made: Tensor) -> None:
        """Put the rows of a micro-batch into the buffer, one by one, as the release does."""
        self.sizes.append(len(batch["input_ids"]))
        experience = library.experience.Experience(
            sequences=batch["input_ids"],
            attention_mask=batch[MASK],
            action_mask=batch["labels"][:, 1:] != IGNORED,
            total_length=batch[MASK].sum(1),
            **made,
        )
        self.replay_buffer.append(experience)

    def step(self, of: str, parts: dict[str, Any], *given: Any) -> dict[str, Any]:
        vars(self).update(parts | {f"{of}_optim": None, f"{of}_scheduler": SCHEDULER})
        logged: dict[str, Any] = self.released["ppo_train"](self, *given)
        return logged

    def training_step(self, *given: Any) -> Any:
        return self.released["training_step"](self, *given)

    def load(self, buffer: Any, *, collate_fn: Any, **_: Any) -> list[Any]:
        """Return the micro-batches of the case, whose sizes may differ, or those of the buffer."""
        items = [buffer[i] for i in range(len(buffer))]
        sizes = [1] * len(items) if self.is_dynamic else self.sizes
        starts = accumulate(sizes, initial=0)
        return [collate_fn(items[i : i + n]) for i, n in zip(starts, sizes, strict=False)]


def of_ppo(batches: Sequence[Batch], stepping: Stepping, *, dynamic: bool) -> dict[str, Any]:
    """Return the arguments of `train_ppo_ray`."""
    lengths = [int(n) for batch in batches for n in batch[MASK].sum(1)]
    rows = len(lengths) * stepping.groups["dp"].size()
    kl = SimpleNamespace(use_loss=False, init_coef=KL)
    return {
        "actor": SimpleNamespace(aux_loss_coef=0.0, entropy_coef=None),
        "algo": SimpleNamespace(kl=kl),
        "rollout": SimpleNamespace(batch_size=rows, n_samples_per_prompt=1),
        "train": SimpleNamespace(
            batch_size=rows,
            dynamic_batch_enable=dynamic,
            # Just enough for the longest row of a replica, whose ranks agree on the most batches.
            max_tokens_per_gpu=-(-max(lengths) // stepping.groups["sp"].size()),
        ),
    }
