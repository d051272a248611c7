"""Steps of OpenRLHF's trainers, whose actor uses the rings of ring-flash-attn."""

from collections.abc import Callable
from functools import partial
from typing import Any

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.openrlhf import fitted, library, ppo, reinforced, sft
from harness.candidates.published.openrlhf.recipes import OF_BALANCE, OF_MARGINS, RECIPES
from harness.candidates.published.openrlhf.settings import REINFORCING, REWARDING, TRAINING
from harness.candidates.published.openrlhf.strategy import FLASH, Engine, ring, strategy_of
from harness.candidates.published.wiring.gradients import emit_gradients, steps
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case
from harness.case.settings import Settings
from harness.recipes import step as recipe_step


def supervised(case: Case, rank: Rank, emit: Emit, *, stride: int = 1, mean: bool = False) -> None:
    """Train as `train_sft`, with one of the two losses that it logs."""
    strategy = strategy_of(case, rank, stride=stride, **sft.arguments(case))
    engine = Engine(case, rank, huggingface.build(case, rank.device, FLASH))
    step(engine, strategy, sft.Trainer(engine, strategy, rank, mean=mean), emit)


def acting(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    policy_loss: str = "ppo",
    dynamic: bool = False,
    kl: bool = False,
    logs: bool = False,
) -> None:
    """Train the actor of `train_ppo_ray`."""
    arguments = ppo.arguments(case, policy_loss=policy_loss, dynamic=dynamic, kl=kl)
    strategy = strategy_of(case, rank, **arguments)
    engine = Engine(case, rank, huggingface.build(case, rank.device, FLASH))
    if dynamic:
        engine.accumulated = 1
    step(engine, strategy, ppo.Trainer(engine, strategy, logs=logs), emit)


def step(engine: Engine, strategy: Any, trainer: Any, emit: Emit) -> None:
    """Run a trainer on micro-batches padded to tables, as a collator makes them."""
    case, rank = engine.case, engine.rank
    with library.on_a_cpu(), ring(strategy), engine.emitting():
        for step_emit in steps(case, engine.named_weights, emit):
            engine.emit = step_emit
            loss = trainer.step(micro_batches(case, rank))
    flash.must_have_run()
    emit("loss", loss)
    emit_gradients(engine.named_weights, emit)


def taking(key: str, of: Callable[..., Any], settings: Settings) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    return recipe_step(RECIPES[key], micro_batches=True, settings=settings)(of).run


STEPS: dict[str, Step] = {
    "sft": supervised,
    "sft-loss-mean": partial(supervised, mean=True),
    "sft-stride": partial(supervised, stride=2),
    "ppo": acting,
    "ppo-gspo": partial(acting, policy_loss="gspo"),
    "ppo-dynamic": partial(acting, dynamic=True),
    "ppo-kl": partial(acting, kl=True),
    "ppo-log": partial(acting, logs=True),
    "sft-balanced": taking("sft-balanced", partial(fitted.supervised, **OF_BALANCE), TRAINING),
    "reward": taking("reward", fitted.reward, REWARDING),
    "reward-logexp": taking("reward-logexp", partial(fitted.reward, **OF_MARGINS), REWARDING),
    "dpo": taking("dpo", fitted.dpo, TRAINING),
    "dpo-balanced": taking("dpo-balanced", partial(fitted.dpo, **OF_BALANCE), TRAINING),
    "critic": taking("critic", reinforced.critic, REINFORCING),
    "actor": taking("actor", reinforced.actor, REINFORCING),
    "actor-balanced": taking("actor-balanced", partial(reinforced.actor, **OF_BALANCE), TRAINING),
}
