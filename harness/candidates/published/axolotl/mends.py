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
    window_on_any_shard,
    window_over_all,
)
from harness.candidates.published.axolotl.wrapping import missing, piece, wrapping_the_cut
from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import Call, wrapped
from harness.candidates.published.wiring.rows import IGNORED, shifted


def shifted_before_the_cut() -> AbstractContextManager[Any]:
    """While this lasts, labels are shifted while they are whole, and transformers uses these."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **options: Any) -> Any:
            # The library would pad these with zeros.
            more, labels_BS = missing(batch, options), shifted(batch["labels"])
            cut, *rest = original(batch, **options)
            whole_BS = F.pad(labels_BS, (0, more), value=IGNORED)
            cut["shift_labels"] = piece(whole_BS, options)
            return cut, *rest

        return call

    return wrapping_the_cut(apply)


def padded_as_labels() -> AbstractContextManager[Any]:
    """While this lasts, shifted labels are padded with -100, as other labels are."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **options: Any) -> Any:
            more = missing(batch, options)
            whole_BS = F.pad(batch.pop("shift_labels"), (0, more), value=IGNORED)
            cut, *rest = original(batch, **options)
            cut["shift_labels"] = piece(whole_BS, options)
            return cut, *rest

        return call

    return wrapping_the_cut(apply)


def mean_over_the_sequence() -> AbstractContextManager[Any]:
    """While this lasts, each rank divides by an even share of all targets of its sequence."""
    from transformers.loss import loss_utils

    from harness.candidates.published.axolotl import library

    def entropy(original: Call) -> Call:
        def call(source: Tensor, target: Tensor, _: Any, *args: Any, **kwargs: Any) -> Any:
            group = library.registered.get_ring_attn_group()
            count = (target != IGNORED).sum().float()
            dist.all_reduce(count, group=group)
            return original(source, target, count / group.size(), *args, **kwargs)

        return call

    return wrapped(loss_utils, "fixed_cross_entropy", entropy)


@contextmanager
def items_of_the_trainer() -> Iterator[None]:
    """While this lasts, ranks of a sequence divide the trainer's own count without rounding."""
    import transformers

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **options: Any) -> Any:
            items = batch["num_items_in_batch"]
            cut, *rest = original(batch, **options)
            cut["num_items_in_batch"] = items
            return cut, *rest

        return call

    def count(original: Call) -> Call:
        def call(self: Any, *args: Any) -> Any:
            config = self.accelerator.parallelism_config
            with patch.object(config, "non_data_parallel_size", 1):
                return original(self, *args) / config.cp_size

        return call

    with wrapping_the_cut(apply), wrapped(transformers.Trainer, "_get_num_items_in_batch", count):
        yield


def padded_before_lengths() -> AbstractContextManager[Any]:
    """While this lasts, padding is a row of its own, as in the collator."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **options: Any) -> Any:
            more = missing(batch, options)
            for key, column in batch.items():
                if isinstance(column, Tensor) and column.dim() == 2:
                    filling = IGNORED if key == "labels" else 0
                    batch[key] = F.pad(column, (0, more), value=filling)
            if more:
                batch["position_ids"][:, -more:] = torch.arange(more)
            return original(batch, **options)

        return call

    return wrapping_the_cut(apply)


def flattened_by_lengths() -> AbstractContextManager[Any]:
    """While this lasts, rows end to end go through the ring that takes lengths."""
    from harness.candidates.published.axolotl import library

    def register(original: Call) -> Call:
        def call(**options: Any) -> None:
            original(**{**options, "ring_attn_func": library.RingAttnFunc.VARLEN_LLAMA3})

        return call

    return wrapped(library.sharing, "register_ring_attn_from_device_mesh", register)


def gradient_of_all() -> AbstractContextManager[Any]:
    """While this lasts, the gather's backward multiplies by the ranks that are averaged over."""
    from harness.candidates.published.axolotl import library

    gather = library.sharing.AllGatherWithGrad
    released = gather.backward

    def backward(ctx: Any, gradient: Tensor) -> Any:
        own_gradient, group = released(ctx, gradient)
        return own_gradient * ctx.group.size(), group

    return patch.object(gather, "backward", staticmethod(backward))


def padded_before_logits() -> AbstractContextManager[Any]:
    """While this lasts, padding stands before the prompts, where no logits are kept."""

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **options: Any) -> Any:
            more = missing(batch, options)
            for key, column in batch.items():
                if isinstance(column, Tensor):
                    batch[key] = F.pad(column, (more, 0))
            return original(batch, **options)

        return call

    return wrapping_the_cut(apply)


MENDS: dict[str, Mend] = {
    "label-lost-at-cut": shifted_before_the_cut,
    "shift-labels-padded-with-zeros": padded_as_labels,
    "loss-mean-of-means": mean_over_the_sequence,
    "items-of-one-micro-batch": items_of_the_trainer,
    "lengths-before-padding": padded_before_lengths,
    "flattened-rows-leak": flattened_by_lengths,
    "ring-window-by-block": window_over_all,
    "padding-attended": padding_hidden,
    "window-one-too-wide": window_counts_the_token_itself,
    "window-gated-on-shard": window_on_any_shard,
    "gathered-gradient-over-sp": gradient_of_all,
    "logits-kept-before-padding": padded_before_logits,
}
