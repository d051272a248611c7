"""Steps of axolotl's trainer over ranks that share a sequence."""

from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import Dataset

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.axolotl import batches, library
from harness.candidates.published.axolotl.recipes import RECIPES
from harness.candidates.published.axolotl.reinforced import ebft
from harness.candidates.published.axolotl.settings import CUTS
from harness.candidates.published.axolotl.stepwise import process_reward
from harness.candidates.published.axolotl.training import Emitting, config, sharing
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.wiring import trainer
from harness.case import Case
from harness.recipes import step as recipe_step

FLASH, SDPA = "flash_attention_2", "sdpa"


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    collator: Callable[[Case], Any],
    attention: str = FLASH,
    packed: bool = False,
    flattened: bool = False,
    **options: Any,
) -> None:
    """Run one training; `options` are those of `context_parallel`."""
    written = config(
        case.sp,
        attention,
        options,
        sample_packing=packed,
        batch_flattening=flattened,
        gradient_accumulation_steps=case.micro_batches,
    )
    with trainer.several_ranks(case.ranks):
        released = trainer.emitting(library.Trainer, Emitting)(
            huggingface.build(case, rank.device, attention),
            library.TrainingArguments(
                **trainer.options(case),
                # As the released builder sets it for every training.
                average_tokens_across_devices=False,
            ),
            data_collator=collator(case),
            train_dataset=Dataset.from_dict({"rows": trainer.dealt_in_turn(case)}),
        )
        released.axolotl_cfg = written
        with sharing(written, released):
            trainer.train(case, rank, emit, released)
    if attention == FLASH:
        flash.must_have_run()


PADDED = partial(step, collator=batches.padded)
PACKED = partial(step, collator=batches.packed, packed=True)

STEPS: dict[str, Step] = {
    "packed": PACKED,
    "packed-unpadded": partial(PACKED, collator=partial(batches.packed, multiple=False)),
    "packed-rows": partial(PACKED, collator=partial(batches.packed, packs=batches.two_packs)),
    "packed-in-forward": partial(PACKED, shard_in_collator=False),
    "packed-sdpa": partial(PACKED, attention=SDPA),
    "packed-ring": partial(PACKED, backend="ring"),
    "packed-ring-distflash": partial(PACKED, backend="ring", load_balance="distflash"),
    "flattened": partial(step, collator=batches.flattened, flattened=True),
    "padded": PADDED,
    "padded-in-forward": partial(PADDED, shard_in_collator=False),
    "padded-sdpa": partial(PADDED, attention=SDPA),
    "padded-ring": partial(PADDED, backend="ring"),
    "padded-ring-gather": partial(PADDED, backend="ring", load_balance="none"),
    "padded-ring-alltoall": partial(PADDED, backend="ring", rotate_method="alltoall"),
    "padded-ring-distflash": partial(PADDED, backend="ring", load_balance="distflash"),
    "process-reward": recipe_step(RECIPES["process-reward"], settings=CUTS)(process_reward).run,
    "ebft": recipe_step(RECIPES["ebft"])(ebft).run,
}
