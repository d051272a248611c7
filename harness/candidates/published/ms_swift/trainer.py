"""One training step as ms-swift's SFT trainer and the transformers trainer below it take it.

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
from harness.candidates.published.ms_swift.batch import IGNORED, Batch
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
        """Where the rows of a packed batch begin, for metrics by channel."""
        ends: Tensor = library.get_packed_seq_params(position_ids)["cu_seq_lens_q"]
        return ends

    def channel_loss(self) -> float:
        """What the log shows of the one channel."""
        (metric,) = self.custom_metrics["train"].values()
        value: float = metric.compute()["value"]
        return value

    def _compute_acc(self, *_given: Any, **_named: Any) -> None:
        """An accuracy for the log, which nothing is trained on."""

    def items(self, batches: list[Batch]) -> Tensor:
        """The number of targets, as the trainer of transformers counts them before a step."""
        count = sum((batch.labels_BS[:, 1:] != IGNORED).sum() for batch in batches)
        count = torch.as_tensor(count, device=self.rank.device)
        if self.args.average_tokens_across_devices:
            # The ranks of one sequence have the same batch, which is counted by each.
            dist.all_reduce(count, group=self.rank.world)
        return count

    def step(self, batch: Batch, items: Tensor, loss_func: Any, emit: Emit) -> Tensor:
        """Forward and backward of one micro-batch, and its loss."""
        inputs = batch.inputs()
        tokens_BL = batch.tokens_BS
        if self.case.sp > 1:
            # Numbers are cut as ids are.
            tokens_BL = batch.split(library.sequence_parallel, tokens_BL)
            library.sequence_parallel.prepare_inputs(inputs)
        inputs["compute_loss_func"] = loss_func
        with (
            told_inputs(self.model, emit, tokens_BL),
            huggingface.watched(self.model, self.case, emit, tokens_BL),
            last_losses(self.model) as seen,
        ):
            loss: Tensor = library.compute_loss(self, self.model, inputs, num_items_in_batch=items)
        self.tell(*seen[-1], tokens_BL.flatten(), emit)
        loss.backward()
        return loss.detach()

    def tell(self, nll: Tensor, labels: Tensor, tokens: Tensor, emit: Emit) -> None:
        """Losses of tokens, and what each of them weighs once backward has reached it."""
        emit("labels", labels, tokens)
        emit("nll", nll, tokens)
        if self.case.sp > 1:
            # Gradients are averaged over all ranks.
            scale = (labels != IGNORED) / self.case.ranks
            nll.register_hook(lambda grad: emit("weight", grad * scale, tokens))


@contextmanager
def last_losses(model: Any) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The losses of tokens and their labels, each time that the library computes some.

    The library keeps only the sum of losses, or a mean that the model computes by itself.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def cross_entropy(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        nll = F.cross_entropy(logits, labels, **options)
        seen.append((nll, labels))
        return nll

    def inside(_module: Any, _given: Any, named: dict[str, Any], out: Any) -> None:
        if "labels" in named:
            cross_entropy(
                out.logits.flatten(0, 1).float(),
                named["labels"].roll(-1, 1).flatten(),
                reduction="none",
            )

    plain = library.per_token_loss_func.__globals__
    shared = library.per_token_loss_func_sp.__globals__
    handle = model.register_forward_hook(inside, with_kwargs=True)
    try:
        with (
            patch.dict(plain, F=SimpleNamespace(cross_entropy=cross_entropy)),
            patch.dict(shared, CrossEntropyLoss=partial(partial, cross_entropy)),
        ):
            yield seen
    finally:
        handle.remove()


@contextmanager
def told_inputs(model: Any, emit: Emit, tokens_BL: Tensor) -> Iterator[None]:
    """Emit ids and positions as they reach the model, cut and padded."""
    base, tokens = model.model, tokens_BL.flatten()
    handles = (
        base.embed_tokens.register_forward_pre_hook(
            lambda _, given: emit("ids", given[0].flatten(), tokens)
        ),
        base.rotary_emb.register_forward_pre_hook(
            lambda _, given, named: emit(
                "positions", spread(named.get("position_ids", given[-1]), tokens_BL), tokens
            ),
            with_kwargs=True,
        ),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def spread(positions_BL: Tensor, tokens_BL: Tensor) -> Tensor:
    """One row of positions may stand for every row."""
    return positions_BL.expand_as(tokens_BL).flatten()
