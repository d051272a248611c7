"""Steps of lmms-engine's trainers over ranks that share a sequence."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.lmms_engine.model import Model
from harness.candidates.published.lmms_engine.trainer import (
    Batch,
    Fsdp2Trainer,
    batch_of,
    hf_step,
    hf_trainer,
)
from harness.candidates.published.wiring.gradients import emit_gradients, steps
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case

FLASH = "flash_attention_2"
# trainer(case, rank, model, parameters) -> step(micro-batches), up to gradients -> the loss.
Trainer = Callable[..., Callable[[list[Batch]], Tensor]]


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    trainer: Trainer,
    attention: str = FLASH,
    sees: bool = False,
) -> None:
    """Train by one of the library's trainers, on micro-batches padded to tables."""
    model = Model(case, rank, attention, sees=sees)
    parameters = huggingface.parameters(model.text, case)
    train = trainer(case, rank, model, parameters)
    for say in steps(case, parameters, emit):
        model.emit = say
        loss = train([batch_of(padded) for padded in micro_batches(case, rank)])
    if attention == FLASH:
        flash.must_have_run()
    emit("loss", loss)
    emit_gradients(parameters, emit)


def fsdp2(*given: Any) -> Callable[[list[Batch]], Tensor]:
    return Fsdp2Trainer(*given).step


def hf(case: Case, rank: Rank, *given: Any, across: bool) -> Callable[[list[Batch]], Tensor]:
    return partial(hf_step, case, rank, hf_trainer(case, rank, across=across), *given)


STEPS: dict[str, Step] = {
    "fsdp2": partial(step, trainer=fsdp2),
    "fsdp2-sdpa": partial(step, trainer=fsdp2, attention="sdpa"),
    "fsdp2-vl": partial(step, trainer=fsdp2, sees=True),
    "hf": partial(step, trainer=partial(hf, across=True)),
    "hf-replica": partial(step, trainer=partial(hf, across=False)),
}
