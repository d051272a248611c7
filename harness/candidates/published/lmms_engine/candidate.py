"""Steps of lmms-engine's trainers over ranks that share a sequence."""

from collections.abc import Callable
from functools import partial

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.lmms_engine.model import Model
from harness.candidates.published.lmms_engine.trainer import (
    Fsdp2Trainer,
    HfTrainer,
    batch_of,
)
from harness.candidates.published.wiring.gradients import emit_gradients, steps
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case

FLASH = "flash_attention_2"
# trainer(case, rank, model, parameters) -> a trainer with a method step(micro-batches) -> loss.
Trainer = Callable[..., Fsdp2Trainer | HfTrainer]


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    trainer: Trainer,
    attention: str = FLASH,
    has_vision: bool = False,
) -> None:
    """Train with one of the library's trainers, on micro-batches padded to tables."""
    model = Model(case, rank, attention, has_vision=has_vision)
    parameters = huggingface.parameters(model.text, case)
    stepping = trainer(case, rank, model, parameters)
    for step_emit in steps(case, parameters, emit):
        model.emit = step_emit
        loss = stepping.step([batch_of(padded) for padded in micro_batches(case, rank)])
    if attention == FLASH:
        flash.must_have_run()
    emit("loss", loss)
    emit_gradients(parameters, emit)


STEPS: dict[str, Step] = {
    "fsdp2": partial(step, trainer=Fsdp2Trainer),
    "fsdp2-sdpa": partial(step, trainer=Fsdp2Trainer, attention="sdpa"),
    "fsdp2-vl": partial(step, trainer=Fsdp2Trainer, has_vision=True),
    "hf": partial(step, trainer=partial(HfTrainer, across=True)),
    "hf-replica": partial(step, trainer=partial(HfTrainer, across=False)),
}
