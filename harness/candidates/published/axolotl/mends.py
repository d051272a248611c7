"""The release without each of its listed bugs.

Legend: B rows, S tokens of all ranks.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates.published.axolotl.rings import (
    padding_hidden,
    window_counts_the_token_itself,
    window_over_all,
    window_whatever_the_shard,
)
from harness.candidates.published.axolotl.wrapping import applying, piece
from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import Call, wrapped

IGNORED = -100


def moved_up_before_the_cut() -> AbstractContextManager[Any]:
    """Labels are shifted while they are whole; transformers takes them as they are."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **given: Any) -> Any:
            # As much padding as the library adds: it would pad these with zeros.
            more = -batch["labels"].shape[1] % given["local_world_size"]
            labels_BS = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
            cut, *rest = original(batch, **given)
            whole_BS = F.pad(labels_BS, (0, more), value=IGNORED)
            cut["shift_labels"] = piece(whole_BS, given)
            return cut, *rest

        return call

    return applying(apply)


def padded_as_labels() -> AbstractContextManager[Any]:
    """Shifted labels are padded with -100, as other labels are."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **given: Any) -> Any:
            more = -batch["input_ids"].shape[1] % given["local_world_size"]
            whole_BS = F.pad(batch.pop("shift_labels"), (0, more), value=IGNORED)
            cut, *rest = original(batch, **given)
            cut["shift_labels"] = piece(whole_BS, given)
            return cut, *rest

        return call

    return applying(apply)


def mean_over_the_sequence() -> AbstractContextManager[Any]:
    """Each rank divides by an even share of all targets of its sequence."""
    from transformers.loss import loss_utils

    from harness.candidates.published.axolotl import library

    def entropy(original: Call) -> Call:
        def call(source: Tensor, target: Tensor, _: Any, *given: Any, **named: Any) -> Any:
            group = library.registered.get_ring_attn_group()
            count = (target != IGNORED).sum().float()
            dist.all_reduce(count, group=group)
            return original(source, target, count / group.size(), *given, **named)

        return call

    return wrapped(loss_utils, "fixed_cross_entropy", entropy)


@contextmanager
def items_of_the_trainer() -> Iterator[None]:
    """The trainer's count is kept, and divided among the ranks of a sequence without rounding."""
    import transformers

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **given: Any) -> Any:
            items = batch["num_items_in_batch"]
            cut, *rest = original(batch, **given)
            cut["num_items_in_batch"] = items
            return cut, *rest

        return call

    def count(original: Call) -> Call:
        def call(self: Any, *given: Any) -> Any:
            config = self.accelerator.parallelism_config
            with patch.object(config, "non_data_parallel_size", 1):
                return original(self, *given) / config.cp_size

        return call

    with applying(apply), wrapped(transformers.Trainer, "_get_num_items_in_batch", count):
        yield


def padded_before_lengths() -> AbstractContextManager[Any]:
    """Padding is a row of its own, as the collator has it."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **given: Any) -> Any:
            more = -batch["input_ids"].shape[1] % given["local_world_size"]
            for key, column in batch.items():
                if isinstance(column, Tensor) and column.dim() == 2:
                    filling = IGNORED if key == "labels" else 0
                    batch[key] = F.pad(column, (0, more), value=filling)
            if more:
                batch["position_ids"][:, -more:] = torch.arange(more)
            return original(batch, **given)

        return call

    return applying(apply)


def flattened_by_lengths() -> AbstractContextManager[Any]:
    """Rows end to end go through the ring that takes lengths."""
    from harness.candidates.published.axolotl import library

    def register(original: Call) -> Call:
        def call(**given: Any) -> None:
            original(**{**given, "ring_attn_func": library.RingAttnFunc.VARLEN_LLAMA3})

        return call

    return wrapped(library.sharing, "register_ring_attn_from_device_mesh", register)


def gradient_of_all() -> AbstractContextManager[Any]:
    """The gather's backward multiplies by the ranks over which gradients are averaged."""
    from harness.candidates.published.axolotl import library

    backward = library.sharing.AllGatherWithGrad.backward

    def give(ctx: Any, gradient: Tensor) -> Any:
        slice_, group = backward(ctx, gradient)
        return slice_ * ctx.group.size(), group

    return patch.object(library.sharing.AllGatherWithGrad, "backward", staticmethod(give))


def padded_before_logits() -> AbstractContextManager[Any]:
    """Padding stands before the prompts, where no logits are kept."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **given: Any) -> Any:
            more = -batch["input_ids"].shape[1] % given["local_world_size"]
            for key, column in batch.items():
                if isinstance(column, Tensor):
                    batch[key] = F.pad(column, (more, 0))
            return original(batch, **given)

        return call

    return applying(apply)


MENDS: dict[str, Mend] = {
    "label-lost-at-cut": moved_up_before_the_cut,
    "shift-labels-padded-with-zeros": padded_as_labels,
    "loss-mean-of-means": mean_over_the_sequence,
    "items-of-one-micro-batch": items_of_the_trainer,
    "lengths-before-padding": padded_before_lengths,
    "flattened-rows-leak": flattened_by_lengths,
    "ring-window-by-block": window_over_all,
    "padding-attended": padding_hidden,
    "window-one-too-wide": window_counts_the_token_itself,
    "window-gated-on-shard": window_whatever_the_shard,
    "gathered-gradient-over-sp": gradient_of_all,
    "logits-kept-before-padding": padded_before_logits,
}
