"""The step of axolotl's trainer of process rewards, which a recipe judges."""

from typing import Any

from datasets import Dataset
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.axolotl import library
from harness.candidates.published.axolotl.prepared import (
    arguments,
    made_for,
    rows_of,
    step,
    tokenizer,
)
from harness.candidates.published.wiring.rows import IGNORED
from harness.recipes.batch import Batch


def process_reward(
    model: Any, batch: Batch, mesh: DeviceMesh, *, shard_in_collator: bool
) -> float:
    """Take the step of `AxolotlPRMTrainer` on rows that already are tokens."""
    names = ("input_ids", "labels", "quality")
    rows = [
        {
            "input_ids": ids.tolist(),
            "attention_mask": [1] * len(ids),
            "labels": (quality > 0).long().masked_fill(labels == IGNORED, IGNORED).tolist(),
        }
        for ids, labels, quality in zip(*(rows_of(batch, name) for name in names), strict=True)
    ]
    words = tokenizer(model.config.vocab_size, 0)
    with made_for(model, mesh):
        made = library.rewards.AxolotlPRMTrainer(
            model=model,
            args=library.training_arguments.AxolotlPRMConfig(**arguments(mesh, len(rows))),
            # Each replica takes its rows out of the set, one replica after the other.
            train_dataset=Dataset.from_list(rows * mesh.shape[0]),
            # The default of 64 would put all tokens of a case on one rank.
            data_collator=library.collators.DataCollatorForSeq2Seq(
                words, pad_to_multiple_of=mesh.shape[1]
            ),
            processing_class=words,
        )
    return step(made, model, mesh, {"shard_in_collator": shard_in_collator})["loss"]
