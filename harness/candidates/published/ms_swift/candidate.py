"""Steps of ms-swift's SFT trainer over ranks that share a sequence."""

import importlib
from functools import partial
from typing import Any

import torch

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import blocks, flash
from harness.candidates.published.library import Step
from harness.candidates.published.ms_swift import library
from harness.candidates.published.ms_swift.batch import Batch
from harness.candidates.published.ms_swift.patches import NAMES, prepared
from harness.candidates.published.ms_swift.recipes import RECIPES
from harness.candidates.published.ms_swift.trainer import Trainer
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps, total
from harness.candidates.published.wiring.meshes import mesh
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case
from harness.recipes import step as recipe_step


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    packed: bool = False,
    weighted: bool = False,
    channel: bool = False,
    cross_entropy: bool = False,
) -> None:
    """Train with a combination of options of the command line."""
    model = huggingface.build(case, rank.device)
    if packed:
        blocks.install()
        flash.give_to_transformers()
        model.set_attn_implementation("flash_attention_2")
    parameters = huggingface.parameters(model, case)
    batches = [
        Batch.of(case, padded, packed=packed, weighted=weighted)
        for padded in micro_batches(case, rank)
    ]
    trainer = Trainer(case, rank, model, packed=packed, channel=channel)
    loss_func = library.loss_by_name(trainer) if cross_entropy else None
    with prepared([model], mesh(case, rank, NAMES), case.pad_id, packed=packed):
        for step_emit in steps(case, parameters, emit):
            targets = trainer.count_targets(batches)
            losses = [trainer.step(batch, targets, loss_func, step_emit) for batch in batches]
            reduce(parameters, rank.world, mean=True)
    if packed:
        flash.must_have_run()
    loss = total(torch.stack(losses).sum(), rank.world) / case.ranks
    if channel:
        loss = loss.new_tensor(trainer.channel_loss())
    emit("loss", loss)
    emit_gradients(parameters, emit)


def trained(model: Any, batches: Any, mesh: Any, *, of: str, **options: Any) -> Any:
    """Take the step of a trainer of `swift rlhf`, which older releases have in another form."""
    name, _, step = of.partition(".")
    module = importlib.import_module(f"harness.candidates.published.ms_swift.{name}")
    return getattr(module, step)(model, batches, mesh, **options)


def taking(key: str, of: str, **options: Any) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    step = partial(trained, of=of, packed=key.startswith("packed-"), **options)
    return recipe_step(RECIPES[key], micro_batches=True)(step).run


DPO, GRPO = "preferences.dpo", "rollouts.grpo"
STEPS: dict[str, Step] = {
    "padded": step,
    "packed": partial(step, packed=True),
    "ring": partial(step, packed=True),
    "loss-scale": partial(step, weighted=True),
    "packed-loss-scale": partial(step, packed=True, weighted=True),
    "cross-entropy": partial(step, cross_entropy=True),
    "packed-cross-entropy": partial(step, packed=True, cross_entropy=True),
    "channel": partial(step, channel=True),
    "packed-channel": partial(step, packed=True, channel=True),
    "dpo": taking("dpo", DPO),
    "packed-dpo": taking("packed-dpo", DPO),
    "grpo": taking("grpo", GRPO),
    "packed-grpo": taking("packed-grpo", GRPO),
    "packed-rloo": taking("packed-rloo", GRPO, kl_in_reward=True),
    "packed-fipo": taking("packed-fipo", GRPO, loss_type="fipo"),
}
