"""One training step, as ms-swift's SFT trainer and the transformers trainer below it run it.

Legend: B rows, S longest row, L tokens of a rank per row of the batch.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.ms_swift import library
from harness.candidates.published.ms_swift.batch import Batch
from harness.candidates.published.wiring.emitting import emit_losses, emitting_inputs
from harness.candidates.published.wiring.rows import IGNORED
from harness.case import Case


class Trainer:
    """A trainer with only what the released `compute_loss` reads."""

    # There is neither a `--label_smoothing_factor` nor an adapter.
    label_smoother = None
    model_accepts_loss_kwargs = True

    def __init__(
        self, case: Case, rank: Rank, model: Any, *, packed: bool, channel: bool = False
    ) -> None:
        self.case, self.rank, self.model = case, rank, model
        model.model_info = SimpleNamespace(is_moe_model=False)
        self.args = SimpleNamespace(
            enable_dft_loss=False,
            enable_channel_loss=channel,
            use_liger_kernel=False,
            router_aux_loss_coef=0.0,
            tuner_backend="peft",
            acc_strategy="token",
            # When off, the loss is a mean over a replica's own tokens.
            average_tokens_across_devices=case.loss != "micro-mean",
        )
        self.template = SimpleNamespace(
            sequence_parallel_size=case.sp,
            padding_free=packed,
            compute_sft_loss=library.compute_sft_loss(),
        )
        self.accelerator = SimpleNamespace(
            unwrap_model=lambda model: model, num_processes=case.ranks
        )
        self.custom_metrics: Any = {"train": defaultdict(lambda: library.mean_metric(rank.world))}

    def get_cu_seqlens(self, position_ids: Tensor, _kept: Any) -> Tensor:
        """Return where the rows of a packed batch begin, for metrics by channel."""
        ends: Tensor = library.get_packed_seq_params(position_ids)["cu_seq_lens_q"]
        return ends

    def channel_loss(self) -> float:
        """Return the loss of the one channel, as the log has it."""
        (metric,) = self.custom_metrics["train"].values()
        value: float = metric.compute()["value"]
        return value

    def _compute_acc(self, *_args: Any, **_kwargs: Any) -> None:
        """Leave out an accuracy for the log, which nothing is trained on."""

    def count_targets(self, batches: list[Batch]) -> Tensor:
        """Return the number of targets, as the trainer of transformers counts it before a step."""
        count = sum((batch.labels_BS[:, 1:] != IGNORED).sum() for batch in batches)
        count = torch.as_tensor(count, device=self.rank.device)
        if self.args.average_tokens_across_devices:
            # The ranks of one sequence have the same batch, and each counts it.
            dist.all_reduce(count, group=self.rank.world)
        return count

    def step(self, batch: Batch, targets: Tensor, loss_func: Any, emit: Emit) -> Tensor:
        """Run forward and backward of one micro-batch -> its loss."""
        inputs = batch.inputs()
        tokens_BL = batch.tokens_BS
        if self.case.sp > 1:
            tokens_BL = batch.own_tokens(library.sequence_parallel)
            library.sequence_parallel.prepare_inputs(inputs)
        inputs["compute_loss_func"] = loss_func
        with (
            emitting_inputs(self.model, emit, tokens_BL),
            huggingface.watched(self.model, self.case, emit, tokens_BL),
            recording_losses(self.model) as recorded,
        ):
            loss: Tensor = library.compute_loss(
                self, self.model, inputs, num_items_in_batch=targets
            )
        nll, labels = recorded[-1]
        # Gradients are averaged over all ranks. On one rank the model computes the loss itself.
        scale = (labels != IGNORED) / self.case.ranks if self.case.sp > 1 else None
        emit_losses(emit, nll, labels, tokens_BL.flatten(), scale)
        loss.backward()
        return loss.detach()


@contextmanager
def recording_losses(model: Any) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield a list that gets the losses and labels of tokens each time some are computed.

    The library keeps only the sum of losses, or a mean that the model computes by itself.
    """
    recorded: list[tuple[Tensor, Tensor]] = []

    def cross_entropy(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        nll = F.cross_entropy(logits, labels, **options)
        recorded.append((nll, labels))
        return nll

    def after_forward(_module: Any, _args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if "labels" in kwargs:
            cross_entropy(
                out.logits.flatten(0, 1).float(),
                kwargs["labels"].roll(-1, 1).flatten(),
                reduction="none",
            )

    alone = library.per_token_loss_func.__globals__
    shared = library.per_token_loss_func_sp.__globals__
    handle = model.register_forward_hook(after_forward, with_kwargs=True)
    try:
        with (
            patch.dict(alone, F=SimpleNamespace(cross_entropy=cross_entropy)),
            patch.dict(shared, CrossEntropyLoss=partial(partial, cross_entropy)),
        ):
            yield recorded
    finally:
        handle.remove()
