"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import (
    Call,
    blocks_get_the_final_result,
    wrapped,
)
from harness.candidates.published.wiring.rows import IGNORED


def ring_with_final_result() -> AbstractContextManager[Any]:
    from harness.candidates.published.twinkle.library import ring

    return blocks_get_the_final_result(ring)


def _count_over_ranks(labels_BL: Tensor) -> tuple[Tensor, int]:
    """Return how many targets the ranks of a sequence have, and how many ranks these are."""
    from harness.candidates.published.twinkle.library import sharing

    shared = sharing.sequence_parallel
    count = (labels_BL != IGNORED).sum().float()
    if not shared.world_size:
        return count, 1
    dist.all_reduce(count, group=shared._data_rank_group)
    return count, shared.world_size


def counted_together() -> AbstractContextManager[Any]:
    """While this lasts, each rank counts an even share of the targets of its sequence."""
    from harness.candidates.published.twinkle.library import losses

    def around(released: Call) -> Call:
        @wraps(released)
        def loss(self: Any, inputs: Any, outputs: Any, **kwargs: Any) -> Any:
            result = released(self, inputs, outputs, **kwargs)
            if self.reduction == "sum":
                count, size = _count_over_ranks(inputs["labels"])
                result["num_tokens"] = (count / size).clamp(min=1 / size)
            return result

        return loss

    return wrapped(losses.ChunkedCrossEntropyLoss, "__call__", around)


def averaged_together() -> AbstractContextManager[Any]:
    """While this lasts, each rank divides by an even share of the targets of its sequence."""
    from harness.candidates.published.twinkle.library import losses

    def around(released: Call) -> Call:
        @wraps(released)
        def loss(self: Any, inputs: Any, outputs: Any, **kwargs: Any) -> Any:
            if self.reduction == "sum":
                return released(self, inputs, outputs, **kwargs)
            count, size = _count_over_ranks(inputs["labels"])
            own_count = (inputs["labels"] != IGNORED).sum().clamp(min=1)
            result = released(self, inputs, outputs, **kwargs)
            result["loss"] = result["loss"] * own_count * size / count.clamp(min=1)
            return result

        return loss

    return wrapped(losses.ChunkedCrossEntropyLoss, "__call__", around)


def empty_micro_batch_counts_zero() -> AbstractContextManager[Any]:
    """While this lasts, a micro-batch without targets adds nothing to the divisors."""
    from harness.candidates.published.twinkle.library import trainer

    def around(released: Call) -> Call:
        @wraps(released)
        def calculate_loss(self: Any, **kwargs: Any) -> Any:
            value = released(self, **kwargs)
            status = self.optimizer_group[self.active_group].train_status
            if not (status.inputs["labels"] != IGNORED).any():
                status.num_tokens -= 1 / self.device_mesh.world_size
                status.outputs["num_tokens"] = torch.tensor(0)
            return value

        return calculate_loss

    return wrapped(trainer.TransformersModel, "calculate_loss", around)


def mask_of_one_row_padded() -> AbstractContextManager[Any]:
    """While this lasts, the mask of a single row is padded like the row."""
    from harness.candidates.published.twinkle.library import sharing

    def around(released: Call) -> Call:
        @wraps(released)
        def pad_and_split(
            self: Any, ids: Any, embeds: Any, labels: Any, positions: Any, mask: Any, *args: Any,
            **kwargs: Any,
        ) -> Any:  # fmt: skip
            if mask is not None and len(mask) == 1 and self.attn_implementation == "sdpa":
                mask = self.pad(mask, padding_value=0)
            return released(self, ids, embeds, labels, positions, mask, *args, **kwargs)

        return pad_and_split

    return wrapped(sharing.SequenceParallel, "pad_and_split_inputs", around)


def single_row_as_padding_free() -> AbstractContextManager[Any]:
    """While this lasts, the library itself finds where rows begin, as for padding_free."""
    from harness.candidates.published.twinkle.library import sharing

    def around(released: Call) -> Call:
        @wraps(released)
        def prepare(self: Any, inputs: Any) -> Any:
            if len(inputs["input_ids"]) == 1 and self.attn_implementation != "sdpa":
                inputs["padding_free"] = True
            return released(self, inputs)

        return prepare

    return wrapped(sharing.SequenceParallel, "prepare_inputs", around)


def values_gathered() -> AbstractContextManager[Any]:
    """While this lasts, the values of a sequence are gathered as log-probabilities are."""
    from harness.candidates.published.twinkle.library import sharing

    def around(released: Call) -> Call:
        @wraps(released)
        def gather(self: Any, inputs: Any, outputs: Any) -> Any:
            values_BL = outputs.get("values")
            if values_BL is None or outputs.get("logps") is not None:
                return released(self, inputs, outputs)
            # The library is handed the values under the name of what it gathers.
            inputs, gathered = released(self, inputs, {"logps": values_BL})
            outputs["values"] = gathered["logps"]
            return inputs, outputs

        return gather

    return wrapped(sharing.SequenceParallelStrategy, "gather_loss_tensors", around)


MENDS: dict[str, Mend] = {
    "ring-drops-lse-gradient": ring_with_final_result,
    "chunked-loss-counts-empty-ranks": counted_together,
    "chunked-loss-mean-of-ranks": averaged_together,
    "empty-batch-counts-as-a-token": empty_micro_batch_counts_zero,
    "mask-of-one-row-not-padded": mask_of_one_row_padded,
    "padding-begins-a-row": single_row_as_padding_free,
    "value-loss-not-gathered": values_gathered,
}
