"""Steps of OpenRLHF's trainers, whose actor uses the rings of ring-flash-attn."""

from functools import partial
from typing import Any

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.openrlhf import judged, library, ppo, sft
from harness.candidates.published.openrlhf.recipes import RECIPES
from harness.candidates.published.openrlhf.strategy import FLASH, Engine, ring, strategy_of
from harness.candidates.published.wiring.gradients import emit_gradients, steps
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case
from harness.recipes import step as recipe_step


def supervised(case: Case, rank: Rank, emit: Emit, *, stride: int = 1, mean: bool = False) -> None:
    """Train as `train_sft`, with one of the two losses that it logs."""
    strategy = strategy_of(case, rank, stride=stride, **sft.arguments(case))
    engine = Engine(case, rank, huggingface.build(case, rank.device, FLASH))
    step(engine, strategy, sft.Trainer(engine, strategy, rank, mean=mean), emit)


def reinforced(
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


STEPS: dict[str, Step] = {
    "sft": supervised,
    "sft-loss-mean": partial(supervised, mean=True),
    "sft-stride": partial(supervised, stride=2),
    "ppo": reinforced,
    "ppo-gspo": partial(reinforced, policy_loss="gspo"),
    "ppo-dynamic": partial(reinforced, dynamic=True),
    "ppo-kl": partial(reinforced, kl=True),
    "ppo-log": partial(reinforced, logs=True),
    "reward": recipe_step(RECIPES["reward"])(judged.reward).run,
    "dpo": recipe_step(RECIPES["dpo"])(judged.dpo).run,
    "critic": recipe_step(RECIPES["critic"])(judged.critic).run,
    "actor": recipe_step(RECIPES["actor"])(judged.actor).run,
}
