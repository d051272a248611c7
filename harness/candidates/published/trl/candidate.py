"""Steps of trl's SFTTrainer over ranks that share a sequence."""

from functools import partial
from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.trl.batches import collating, tokenizer
from harness.candidates.published.trl.log_probs import EmittingLogProbs
from harness.candidates.published.trl.preferences import dpo, reward
from harness.candidates.published.trl.recipes import RECIPES
from harness.candidates.published.wiring import trainer
from harness.case import Case
from harness.recipes import step as recipe_step


def step(case: Case, rank: Rank, emit: Emit, **arguments: Any) -> None:
    """Run one training on rows that already are tokens."""
    options = trainer.options(case) | {
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "max_length": None,
        "pad_to_multiple_of": 2 * case.sp if case.sp > 1 else None,
        "gradient_checkpointing": case.checkpoint,
        "bf16": False,
    }
    with trainer.several_ranks(case.ranks):
        released = trainer.emitting(SFTTrainer, EmittingLogProbs)(
            huggingface.build(case, rank.device),
            SFTConfig(**options, **arguments),
            train_dataset=Dataset.from_dict({"rows": trainer.dealt_in_turn(case)}),
            processing_class=tokenizer(case.vocab, case.pad_id),
        )
        released.data_collator = collating(case, released.data_collator)
        trainer.train(case, rank, emit, released)


STEPS: dict[str, Step] = {
    "sft": step,
    "sft-padding-free": partial(step, padding_free=True),
    "sft-replica": partial(step, average_tokens_across_devices=False),
    # Such a small factor has no effect in fp32.
    "sft-label-smoothing": partial(step, label_smoothing_factor=1e-30),
    "reward": recipe_step(RECIPES["reward"])(reward).run,
    "dpo": recipe_step(RECIPES["dpo"])(dpo).run,
}
