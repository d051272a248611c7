"""Steps of OpenRLHF's trainers that recipes judge.

Legend: B rows, S columns, A columns of actions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.openrlhf import library
from harness.candidates.published.openrlhf.recipes import BETA, ENTROPY, EPSILON, KL
from harness.candidates.published.openrlhf.strategy import FLASH, actor_of, ring, strategy_over
from harness.candidates.published.wiring.gradients import reduce, total
from harness.candidates.published.wiring.rows import IGNORED
from harness.recipes.batch import Batch

LOGGER = SimpleNamespace(logging_steps=1, tensorboard_dir=None, wandb=SimpleNamespace(key=None))
SCHEDULER = SimpleNamespace(get_last_lr=lambda: [0.0])


class Engine(nn.Module):
    """An engine in DeepSpeed's place, which averages gradients over all ranks."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module, self.losses = module, list[Tensor]()

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)

    def backward(self, loss: Tensor) -> None:
        self.losses.append(loss.detach())
        loss.backward()

    def step(self) -> None:
        reduce(dict(self.module.named_parameters()), whole_world(), mean=True)

    def get_global_grad_norm(self) -> None:
        """Return None: nothing is clipped."""

    @property
    def loss(self) -> Tensor:
        """The loss that was trained, over all ranks."""
        (loss,) = self.losses
        return total(loss, whole_world()) / whole_world().size()


def reward(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Take the step of `RewardModelTrainer.fit`."""
    ids, attended, _ = by_preference(batch)
    with stepping(mesh, model, "reward", **of_fit(margin_loss_enable=False)) as (engine, strategy):
        released = Fitting(library.RewardModelTrainer, engine, strategy)
        released.fit((ids[0], attended[0], ids[1], attended[1], None))
    return engine.loss


def dpo(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Take the step of `DPOTrainer.fit`; the reference says what the recipe computed of it."""
    ids, attended, prompts = by_preference(batch)
    order = batch["row"].argsort()
    reference_BS = torch.cat([batch["reference_logps"][order[side::2]] for side in (0, 1)])
    with stepping(mesh, model, "", **of_fit(label_smoothing=0.0)) as (engine, strategy):
        actor = actor_of(engine)
        released = Fitting(library.DPOTrainer, actor, strategy, Told(reference_BS[:, 1:]))
        released.fit((ids[0], attended[0], ids[1], attended[1], prompts))
    return engine.loss


class Told(nn.Module):
    """A reference whose log-probabilities are known."""

    def __init__(self, logps_BA: Tensor) -> None:
        super().__init__()
        self.logps_BA = logps_BA

    def forward(self, *_: Any, **__: Any) -> tuple[Tensor, dict[str, Any]]:
        return self.logps_BA, {}


def by_preference(batch: Batch) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Return ids and masks, each of the preferred rows and of the others, and lengths of prompts.

    The trainer takes one length for both rows of a pair, and masks so many columns of a table.
    """
    order = batch["row"].argsort()
    sides = [order[side::2] for side in (0, 1)]
    is_target_BS = (batch["labels"] != IGNORED).int()
    prompts = is_target_BS[sides[0]].argmax(1).tolist()
    ids, attended = ([batch[name][side] for side in sides] for name in ("input_ids", MASK))
    return ids, attended, prompts


def critic(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Take the step of `CriticPPOTrainer.ppo_train`."""
    with stepping(mesh, model, "critic", **OF_PPO) as (engine, strategy):
        made = {"values": batch["old_values"][:, 1:], "returns": batch["returns"][:, 1:]}
        released = Reinforcing("Critic", strategy, experience(batch, **made))
        parts = {"critic": engine, "critic_loss_fn": library.losses.ValueLoss(EPSILON)}
        released.step("critic", parts)
    return engine.loss


def actor(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Take the step of `ActorPPOTrainer.ppo_train`, with a KL loss and a bonus for entropy."""
    with stepping(mesh, model, "", **OF_PPO) as (engine, strategy):
        old_BA = batch["old_logps"][:, 1:]
        made = {
            "action_log_probs": old_BA,
            "base_action_log_probs": batch["reference_logps"][:, 1:],
            "advantages": batch["advantages"][:, None].expand_as(old_BA),
        }
        released = Reinforcing("Actor", strategy, experience(batch, **made))
        policy_loss = library.losses.PolicyLoss(EPSILON, EPSILON)
        parts = {"actor": actor_of(engine), "actor_loss_fn": policy_loss, "ema_model": None}
        released.step("actor", parts, KL)
    return engine.loss


def experience(batch: Batch, **made: Tensor) -> Any:
    """Return an experience of these rows."""
    return library.experience.Experience(
        sequences=batch["input_ids"],
        attention_mask=batch[MASK],
        action_mask=batch["labels"][:, 1:] != IGNORED,
        total_length=batch[MASK].sum(1),
        **made,
    )


class Reinforcing:
    """A trainer of PPO with only what the released methods read."""

    aux_loss = dataloader_pin_memory = False
    max_epochs = 1

    def __init__(self, of: str, strategy: Any, experience: Any) -> None:
        self.released = library.methods_of_ppo_trainer(self.load, of)
        self.strategy, self.args = strategy, strategy.args
        self.replay_buffer = library.replay_buffer(dynamic=False)
        self.replay_buffer.append(experience)

    def step(self, of: str, parts: dict[str, Any], *given: Any) -> None:
        vars(self).update(parts | {f"{of}_optim": None, f"{of}_scheduler": SCHEDULER})
        self.released["ppo_train"](self, *given)

    def training_step(self, *given: Any) -> Any:
        return self.released["training_step"](self, *given)

    def load(self, buffer: Any, *, collate_fn: Any, **_: Any) -> list[Any]:
        """Return all rows as one micro-batch."""
        return [collate_fn([buffer[i] for i in range(len(buffer))])]


class Fitting:
    """A released trainer with a `fit`, which takes one step and saves nothing."""

    def __init__(self, released: type[Any], model: Any, strategy: Any, *reference: Any) -> None:
        named: dict[str, Any] = {
            "strategy": strategy,
            "scheduler": SCHEDULER,
            # What a table is padded with is masked.
            "tokenizer": SimpleNamespace(pad_token_id=0),
            "max_epochs": 1,
            **dict.fromkeys(("optim", "train_dataloader", "eval_dataloader")),
        }
        named |= {"ref_model": reference[0], "beta": BETA} if reference else {}
        self.trainer = released(model, **named)
        self.trainer.save_logs_and_checkpoints = lambda *_: None

    def fit(self, batch: tuple[Any, ...]) -> None:
        self.trainer.train_dataloader = Loader([batch])
        self.trainer.fit(self.trainer.args)


class Loader(list[Any]):
    """Micro-batches as a data loader without a sampler has them."""

    sampler = None


def of_fit(**of_model: Any) -> dict[str, Any]:
    """Return the arguments of `train_rm` and `train_dpo`."""
    model = {"aux_loss_coef": 0.0, "nll_loss_coef": 0.0, "ipo_enable": False}
    model |= {"compute_fp32_loss_enable": False, **of_model}
    return {
        "ckpt": SimpleNamespace(save_steps=-1),
        "eval": SimpleNamespace(steps=-1),
        "logger": LOGGER,
        "model": SimpleNamespace(**model),
        "train": SimpleNamespace(batch_size=1),
    }


@contextmanager
def stepping(
    mesh: DeviceMesh, model: Any, head: str, /, **args: Any
) -> Iterator[tuple[Engine, Any]]:
    """While this lasts, run a trainer on a model in a ring -> its engine and its strategy."""
    model.set_attn_implementation(FLASH)
    engine = Engine(library.regression(head, model) if head else model)
    groups = {name: mesh[name].get_group() for name in ("dp", "sp")}
    strategy = strategy_over(groups, whole_world(), **args)
    # Its entropy is compiled, which on a CPU takes minutes.
    with library.on_a_cpu(), ring(strategy), torch.compiler.set_stance("force_eager"):
        yield engine, strategy
    flash.must_have_run()


def whole_world() -> dist.ProcessGroup:
    """Return the group of all ranks, since a step with a recipe takes all there are."""
    world = dist.group.WORLD
    assert world is not None
    return world


MASK = "attention_mask"
OF_PPO = {
    "actor": SimpleNamespace(aux_loss_coef=0.0, entropy_coef=ENTROPY),
    "algo": SimpleNamespace(
        kl=SimpleNamespace(use_loss=True, init_coef=KL, estimator="k3", unbiased_gradient=False)
    ),
    "train": SimpleNamespace(dynamic_batch_enable=False),
}
