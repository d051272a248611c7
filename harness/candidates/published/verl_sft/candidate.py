"""Steps of verl's first SFT trainer over ranks that share a sequence."""

from functools import partial

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.verl.library import patched
from harness.candidates.published.verl_sft.trainer import Batch, Trainer
from harness.candidates.published.wiring.gradients import emit_gradients, steps
from harness.candidates.published.wiring.limits import dealt
from harness.candidates.published.wiring.rows import padded
from harness.case import Case


def step(
    case: Case, rank: Rank, emit: Emit, *, balanced: bool = False, predicting: bool = False
) -> None:
    """Train with the released `training_step`, which packs rows if ranks share them."""
    model = huggingface.build(case, rank.device)
    flash.give_to_transformers()
    model.set_attn_implementation("flash_attention_2")
    parameters = huggingface.parameters(model, case)
    rows = list(range(rank.dp_index, len(case.rows), case.dp))
    sizes = list(map(len, dealt(case, rank.dp_index)))
    trainer = Trainer(case, rank, model, balanced=balanced)
    trainer.parameters = parameters
    with patched(model, case.sp):
        for step_emit in steps(case, parameters, emit):
            batch = Batch(padded(case, rows, rank.device), sizes, predicting=predicting)
            loss = trainer.training_step(batch, step_emit)
    flash.must_have_run()
    emit("loss", next(model.parameters()).new_tensor(loss))
    emit_gradients(parameters, emit)


STEPS: dict[str, Step] = {
    # With the masks of MultiTurnSFTDataset.
    "packed": step,
    # With the masks of SFTDataset.
    "single-turn": partial(step, predicting=True),
    "balanced": partial(step, balanced=True),
}
