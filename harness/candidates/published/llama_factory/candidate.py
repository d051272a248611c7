"""Steps of LLaMA-Factory's second trainer over ranks that share a sequence."""

from contextlib import nullcontext
from functools import partial

import torch

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.llama_factory.batch import batch_of
from harness.candidates.published.llama_factory.patches import interface, shared
from harness.candidates.published.llama_factory.trainer import Trainer, in_full
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case


def step(case: Case, rank: Rank, emit: Emit, *, packed: bool) -> None:
    """Train on micro-batches of one of the two batching strategies."""
    model = huggingface.build(case, rank.device)
    # After the model: this transformers asks for flash-attn's distribution when it is imported.
    flash.give_to_transformers()
    model.set_attn_implementation("flash_attention_2")
    parameters = huggingface.parameters(model, case)
    batches = [batch_of(padded, packed=packed) for padded in micro_batches(case, rank)]
    trainer = Trainer(case, model, batches)
    with (
        interface(case, rank),
        shared(model, case, rank, trainer.cross_entropy) if case.sp > 1 else nullcontext(),
        trainer.seen(),
    ):
        for say in steps(case, parameters, emit):
            loss = trainer.step(say)
            reduce(parameters, rank.world, mean=True)
            for _, gradient in huggingface.gradients(model, case):
                gradient.mul_(in_full(case))
    flash.must_have_run()
    emit("loss", torch.tensor(loss * in_full(case)))
    emit_gradients(parameters, emit)


STEPS: dict[str, Step] = {
    "padded": partial(step, packed=False),
    "packed": partial(step, packed=True),
}
