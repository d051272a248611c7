"""Steps of transformers' Trainer over ranks that share a sequence."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import transformers
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.transformers_trainer.batches import stream, table
from harness.candidates.published.wiring import trainer
from harness.case import Case

Collate = Callable[[Case, Sequence[int], int], trainer.Batch]


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    collate: Collate = table,
    pieces: int = 2,
    rotation: str = "allgather",
    loss_kwargs: bool = True,
    loss_function: Callable[..., Tensor] | None = None,
    **arguments: Any,
) -> None:
    """Run one training; a sequence is padded to so many `pieces` for each rank that shares it."""
    model = huggingface.build(case, rank.device)
    # False in classes of models that ignore the number of items.
    model.accepts_loss_kwargs = loss_kwargs
    multiple = pieces * case.sp if case.sp > 1 else 1
    with trainer.several_ranks(case.ranks):
        released = trainer.emitting(transformers.Trainer)(
            model,
            transformers.TrainingArguments(**trainer.options(case, rotation), **arguments),
            data_collator=lambda batches: collate(case, batches[0], multiple),
            train_dataset=trainer.dealt_in_turn(case),
            compute_loss_func=loss_function,
        )
        trainer.train(case, rank, emit, released)


def causal(outputs: Any, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    """Compute the loss of models, as a user's own function."""
    logits = outputs.logits
    loss: Tensor = ForCausalLMLoss(logits, labels, logits.shape[-1], num_items_in_batch)
    return loss


STEPS: dict[str, Step] = {
    "padded": step,
    "padded-alltoall": partial(step, rotation="alltoall"),
    "padded-to-cp": partial(step, pieces=1),
    "packed": partial(step, collate=stream),
    "replica": partial(step, average_tokens_across_devices=False),
    "no-loss-kwargs": partial(step, loss_kwargs=False),
    # Such a small factor has no effect in fp32.
    "label-smoothing": partial(step, label_smoothing_factor=1e-30),
    "loss-function": partial(step, loss_function=causal),
}
