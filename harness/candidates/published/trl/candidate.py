"""Steps of trl's SFTTrainer over ranks that share a sequence."""

from functools import partial
from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.trl.batches import collating, tokenizer
from harness.candidates.published.trl.ears import Fused
from harness.candidates.published.wiring import trainer
from harness.candidates.published.wiring.smoother import smoothing
from harness.case import Case


def step(case: Case, rank: Rank, emit: Emit, **chosen: Any) -> None:
    """One training on rows that are tokens already."""
    options = trainer.options(case) | {
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "max_length": None,
        "pad_to_multiple_of": 2 * case.sp if case.sp > 1 else None,
        "gradient_checkpointing": case.checkpoint,
        "bf16": False,
    }
    with trainer.several_ranks(case):
        made = trainer.following(SFTTrainer, Fused)(
            huggingface.build(case, rank.device),
            SFTConfig(**options, **chosen),
            train_dataset=Dataset.from_dict({"rows": trainer.dealt_in_turn(case)}),
            processing_class=tokenizer(case),
        )
        made.data_collator = collating(case, made.data_collator)
        if made.label_smoother:
            made.label_smoother = smoothing(made)
        trainer.train(case, rank, emit, made)


STEPS: dict[str, Step] = {
    "sft": step,
    "sft-padding-free": partial(step, padding_free=True),
    "sft-replica": partial(step, average_tokens_across_devices=False),
    # So little that in fp32 nothing is smoothed.
    "sft-label-smoothing": partial(step, label_smoothing_factor=1e-30),
}
