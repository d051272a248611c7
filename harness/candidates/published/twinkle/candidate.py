"""Steps of twinkle's `TransformersModel` over ranks that share a sequence."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.twinkle import preferences, reinforced
from harness.candidates.published.twinkle.batch import features
from harness.candidates.published.twinkle.library import losses
from harness.candidates.published.twinkle.patches import prepared
from harness.candidates.published.twinkle.recipes import RECIPES
from harness.candidates.published.twinkle.released import Exact
from harness.candidates.published.twinkle.trainer import Trainer
from harness.candidates.published.wiring.emitting import without
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps
from harness.candidates.published.wiring.limits import any_is_padded_on_the_left
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case
from harness.recipes import step as recipe_step

Loss = Callable[[], Any]

# Losses that `set_loss` takes; the first is the default.
summed: Loss = partial(losses.CrossEntropyLoss, reduction="sum")
mean: Loss = losses.CrossEntropyLoss
chunked: Loss = partial(losses.ChunkedCrossEntropyLoss, chunk_size=3, reduction="sum")
chunked_mean: Loss = partial(losses.ChunkedCrossEntropyLoss, chunk_size=3)
fused: Loss = losses.LigerFusedLinearCrossEntropyLoss


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    attention: str = "sdpa",
    loss: Loss = summed,
    padding_free: bool = False,
    joined: bool = False,
) -> None:
    """Train with a layout of rows, an attention and a loss."""
    model = huggingface.build(case, rank.device)
    model.set_attn_implementation(attention)
    model.register_forward_hook(logits_in_fp32)
    parameters = huggingface.parameters(model, case)
    batches = [features(padded, joined=joined) for padded in micro_batches(case, rank)]
    side = "left" if any_is_padded_on_the_left(case) else "right"
    task = "fused_lm_ce" if loss is fused else "causal_lm"

    with prepared(rank.sp):
        trainer = Trainer(case, rank, model, loss(), padding_free=padding_free, padding_side=side)
        for step_emit in steps(case, parameters, emit):
            trainer.metric.total_loss = Exact()
            for batch in batches:
                # With a fused loss the model leaves its head out.
                hidden = ("logits",) if loss is fused else ()
                trainer.micro_batch(batch, task, without(step_emit, *hidden))
            reduce(parameters, rank.world, mean=True)
            trainer.divide(step_emit)
            logged = trainer.logged()
    if attention == "flash_attention_2":
        flash.must_have_run()
    emit("loss", torch.tensor(logged, dtype=torch.float64))
    emit_gradients(parameters, emit)


def logits_in_fp32(_module: Any, _args: Any, outputs: Any) -> Any:
    """Convert logits to fp32, as accelerate does for a model in half precision."""
    if outputs.logits is not None:
        outputs.logits = outputs.logits.float()
    return outputs


def taking(key: str, of: Callable[..., Any]) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    given = partial(of, packed=key.startswith("packed-"))
    return recipe_step(RECIPES[key], micro_batches=True)(given).run


packed: Callable[..., None] = partial(step, attention="flash_attention_2", padding_free=True)
dataset: Step = partial(step, attention="flash_attention_2", joined=True)

STEPS: dict[str, Step] = {
    "padded": step,
    "padded-flash": partial(step, attention="flash_attention_2"),
    "packed": packed,
    "packed-dataset": dataset,
    "ring": packed,
    "without-targets": step,
    "mean": partial(step, loss=mean),
    "packed-mean": partial(packed, loss=mean),
    "chunked": partial(step, loss=chunked),
    "packed-chunked": partial(packed, loss=chunked),
    "chunked-mean": partial(step, loss=chunked_mean),
    "fused": partial(step, loss=fused),
    "packed-fused": partial(packed, loss=fused),
    "grpo": taking("grpo", reinforced.grpo),
    "packed-grpo": taking("packed-grpo", reinforced.grpo),
    "ppo": taking("ppo", reinforced.ppo),
    "packed-ppo": taking("packed-ppo", reinforced.ppo),
    "value": taking("value", reinforced.value),
    "packed-value": taking("packed-value", reinforced.value),
    "dpo": taking("dpo", preferences.dpo),
    "packed-dpo": taking("packed-dpo", preferences.dpo),
    "pairs": taking("pairs", preferences.pairs),
    "packed-pairs": taking("packed-pairs", preferences.pairs),
}
