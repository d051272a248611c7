"""Steps of LLaMA-Factory's second trainer over ranks that share a sequence."""

from contextlib import nullcontext
from functools import partial

import torch

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.llama_factory.batch import batch_of
from harness.candidates.published.llama_factory.patches import interface, sharing
from harness.candidates.published.llama_factory.trainer import Trainer, exact_count_factor
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case


def step(case: Case, rank: Rank, emit: Emit, *, packed: bool) -> None:
    """Train on micro-batches of one batching strategy."""
    model = huggingface.build(case, rank.device)
    # Only now: this transformers looks for flash-attn's distribution when it is imported.
    flash.give_to_transformers()
    model.set_attn_implementation("flash_attention_2")
    parameters = huggingface.parameters(model, case)
    batches = [batch_of(padded, packed=packed) for padded in micro_batches(case, rank)]
    trainer = Trainer(case, model, batches)
    with (
        interface(case, rank),
        sharing(model, case, rank, trainer.cross_entropy) if case.sp > 1 else nullcontext(),
        trainer.emitting_forwards(),
    ):
        for step_emit in steps(case, parameters, emit):
            loss = trainer.step(step_emit)
            reduce(parameters, rank.world, mean=True)
            for _, gradient in huggingface.gradients(model, case):
                gradient.mul_(exact_count_factor(case))
    flash.must_have_run()
    emit("loss", torch.tensor(loss * exact_count_factor(case)))
    emit_gradients(parameters, emit)


STEPS: dict[str, Step] = {
    "padded": partial(step, packed=False),
    "packed": partial(step, packed=True),
}
