"""An object on which the trainer's released methods run, without FSDP.

Legend: B rows, S columns, V vocabulary.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.verl.library import own_tokens
from harness.candidates.published.verl_sft.library import ShardingManager, methods
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses
from harness.candidates.published.wiring.gradients import reduce
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case


class Batch(dict[str, Any]):
    """The tensor dict that a data loader yields, cut where the case cuts it."""

    def __init__(self, padded: Padded, sizes: list[int], *, predicting: bool) -> None:
        self.padded, self.sizes, self.predicting = padded, sizes, predicting
        loss_mask_BS = padded.targets_BS.long()
        if predicting:
            # The mask is on the token before a target.
            loss_mask_BS = F.pad(loss_mask_BS[:, 1:], (0, 1))
        super().__init__(
            input_ids=padded.ids_BS,
            attention_mask=padded.attended_BS,
            position_ids=padded.positions_BS,
            loss_mask=loss_mask_BS,
        )

    def split(self, _: int) -> list["Batch"]:
        """Return the micro-batches of the case, whatever size is given."""
        pieces = zip(
            *(getattr(self.padded, name).split(self.sizes) for name in Padded.__slots__),
            strict=True,
        )
        return [Batch(Padded(*piece), [], predicting=self.predicting) for piece in pieces]


class Mesh:
    """A mesh whose `size` accepts a name; in the release that raises TypeError."""

    def __init__(self, rank: Rank) -> None:
        self.groups = {"dp": rank.dp, "sp": rank.sp}

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(get_group=lambda: self.groups[name])

    def size(self, name: str) -> int:
        return self.groups[name].size()


def summed(
    original: Callable[..., Any], world: ProcessGroup, x: Tensor, group: ProcessGroup | None = None
) -> None:
    """Sum over the group, or over `world` where no group is named."""
    original(x, group=group or world)


def size(
    original: Callable[..., int], world: ProcessGroup, group: ProcessGroup | None = None
) -> int:
    """Return the size of the group, or of `world` where no group is named."""
    return original(group or world)


class Trainer:
    """The released methods, and the attributes that these read."""

    def __init__(self, case: Case, rank: Rank, model: Any, *, balanced: bool) -> None:
        self.case, self.rank, self.model = case, rank, model
        self.step, self.micro_step = methods(self.cross_entropy)
        self.parameters: dict[str, nn.Parameter] = {}
        # The methods read these.
        self.use_remove_padding = case.sp > 1
        self.device_name = rank.device.type
        self.fsdp_model = self
        self.ulysses_device_mesh = Mesh(rank)
        self.device_mesh = SimpleNamespace(size=lambda _: case.ranks)
        self.sharding_manager = ShardingManager(self.ulysses_device_mesh)
        self.config = SimpleNamespace(
            ulysses_sequence_parallel_size=case.sp,
            data=SimpleNamespace(balance_dp_token=balanced, micro_batch_size_per_gpu=None),
            model=SimpleNamespace(strategy="fsdp"),
            optim=SimpleNamespace(clip_grad=1.0),
        )
        # The caller updates the weights.
        self.optimizer = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
        self.lr_scheduler = SimpleNamespace(step=lambda: None, get_last_lr=lambda: [0.0])

    def training_step(self, batch: Batch, emit: Emit) -> float:
        """Run one step up to the gradients that its optimizer would see -> the logged loss."""
        self.emit = emit
        world = self.rank.world
        with (
            patch.object(torch, "autocast", lambda *_, **__: nullcontext()),
            # The process group may have more ranks than the case.
            patch.object(dist, "all_reduce", partial(summed, dist.all_reduce, world)),
            patch.object(dist, "get_world_size", partial(size, dist.get_world_size, world)),
        ):
            logged: float = self.step(self, batch)["train/loss"]
        return logged

    def _compute_loss_and_backward(self, batch: Batch, **options: Any) -> Tensor:
        self.padded = batch.padded
        loss: Tensor = self.micro_step(self, batch, **options)
        return loss

    # The methods call these of the model that FSDP has wrapped.

    def train(self) -> None:
        self.model.train()

    def __call__(self, **inputs: Any) -> Any:
        tokens = self.tokens()
        emit_inputs(self.emit, inputs, tokens)
        with huggingface.watched(self.model, self.case, self.emit, tokens):
            return self.model(**inputs)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:  # noqa: ARG002 - nothing is clipped
        """Average gradients over all ranks, as FSDP would have by now."""
        reduce(self.parameters, self.rank.world, mean=True)
        return torch.zeros(())

    def cross_entropy(self, reduction: str) -> Any:
        """Return the loss of torch, which emits what it computes."""
        original = nn.CrossEntropyLoss(reduction=reduction)

        def losses(logits_LV: Tensor, labels_L: Tensor) -> Tensor:
            nll_L: Tensor = original(logits_LV, labels_L)
            emit_losses(
                self.emit, self.all_columns(nll_L), self.all_columns(labels_L), self.tokens()
            )
            return nll_L

        return losses

    def all_columns(self, x: Tensor) -> Tensor:
        """Return the values with zeros in the last column, which the trainer drops at sp 1."""
        if self.case.sp > 1:
            return x
        return F.pad(x.view(len(self.padded.ids_BS), -1), (0, 1)).flatten()

    def tokens(self) -> Tensor:
        """Return the numbers of the tokens that the model is given."""
        if self.case.sp == 1:
            return self.padded.tokens_BS.flatten()
        return own_tokens(self.padded.packed.tokens_T, self.case.sp)
