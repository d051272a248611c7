"""One rank's columns of a batch, for a Ulysses step on any transformers model.

Legend: B rows, S columns, L columns of this rank, V vocabulary.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.recipes.batch import IGNORED
from properties.planted.ulysses import over_whole_rows


class Sum(torch.autograd.Function):
    """A sum over ranks that all use in the same way; each keeps its own share of the gradient."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: Any) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def summed(x: Tensor, group: Any = None) -> Tensor:
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return total


class Once(torch.autograd.Function):
    """A loss that all ranks of a sequence compute: each trains on all of it and logs its share."""

    @staticmethod
    def forward(_ctx: Any, loss: Tensor, ranks: int) -> Tensor:
        return loss / ranks

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Shard:
    """This rank's columns of its replica's batch, and what the model makes of them."""

    def __init__(self, model: Any, batch: dict[str, Tensor], mesh: Any, fault: str) -> None:
        self.batch, self.group, self.fault = batch, mesh["sp"].get_group(), fault
        self.replicas: int = mesh["dp"].size()
        real_BS = self.even(batch["attention_mask"]).bool()
        place_S = torch.arange(real_BS.shape[1], device=real_BS.device)
        seen_BSS = (place_S[:, None] >= place_S) & real_BS[:, None]
        if fault == "padding_attended":
            seen_BSS = (place_S[:, None] >= place_S).expand_as(seen_BSS).clone()
        if fault == "future_attended":
            seen_BSS = real_BS[:, None].expand_as(seen_BSS).clone()
        if fault == "shard_attended":
            shard_S = place_S // (len(place_S) // self.group.size())
            seen_BSS &= shard_S[:, None] == shard_S
        # Padding sees itself: a softmax over nothing is not a number.
        seen_BSS |= place_S[:, None] == place_S
        # A tower has other attention, and is done before.
        inputs = self.inputs(model)
        model.set_attn_implementation("ulysses")
        for module in model.modules():
            if type(module).__name__.endswith("GatedDeltaNet"):
                over_whole_rows(module, real_BS, self.group, fault)
        routed = {"output_router_logits": True} if hasattr(model, "num_experts") else {}
        self.out = model(
            **inputs,
            use_cache=False,
            seen_BSS=seen_BSS,
            group=self.group,
            fault=fault,
            **routed,
        )
        self.logits_BLV: Tensor = self.out.logits
        labels_BL = self.next(batch["labels"], IGNORED)
        if fault == "labels_rolled_locally":
            labels_BL = F.pad(self.cut(batch["labels"], IGNORED)[:, 1:], (0, 1), value=IGNORED)
        if fault == "labels_unshifted":
            labels_BL = self.cut(batch["labels"], IGNORED)
        self.is_target_BL = labels_BL != IGNORED
        self.labels_BL = labels_BL

    def inputs(self, model: Any) -> dict[str, Any]:  # noqa: ARG002 - overrides use it
        """Return what the model is given of this rank's columns."""
        positions_BL = self.cut(self.batch["position_ids"])
        if self.fault == "positions_restarted":
            places_L = torch.arange(positions_BL.shape[1], device=positions_BL.device)
            positions_BL = places_L.expand_as(positions_BL)
        return {"input_ids": self.cut(self.batch["input_ids"]), "position_ids": positions_BL}

    @cached_property
    def logps_BL(self) -> Tensor:  # noqa: N802 - its shape is part of its name
        shares_BLV = self.logits_BLV.float().log_softmax(-1)
        logps_BL = shares_BLV.gather(-1, self.labels_BL.clamp(min=0)[..., None])[..., 0]
        return logps_BL.masked_fill(~self.is_target_BL, 0)

    def even(self, x_BS: Tensor, value: int = 0) -> Tensor:
        more = -x_BS.shape[1] % self.group.size()
        padded: Tensor = F.pad(x_BS.movedim(1, -1), (0, more), value=value).movedim(-1, 1)
        return padded

    def cut(self, x_BS: Tensor, value: int = 0) -> Tensor:
        """Return this rank's columns of a table."""
        mine: Tensor = self.even(x_BS, value).chunk(self.group.size(), 1)[self.group.rank()]
        return mine

    def next(self, x_BS: Tensor, value: int = 0) -> Tensor:
        """Return the column behind each of this rank's columns."""
        return self.cut(F.pad(x_BS[:, 1:], (0, 1), value=value), value)

    @property
    def targets(self) -> Tensor:
        """The number of all targets, on all ranks."""
        count = self.is_target_BL.sum()
        if self.fault == "tokens_counted_locally":
            return count.clamp(min=1) * dist.get_world_size()
        return summed(count).clamp(min=1)

    @property
    def targets_by_row(self) -> Tensor:
        """The number of targets of each row, on the ranks that share it."""
        return summed(self.is_target_BL.sum(1), self.group).clamp(min=1)

    @property
    def rows(self) -> Tensor:
        """The number of rows of all replicas."""
        return torch.tensor(len(self.labels_BL) * self.replicas)

    def mean(self, x_BL: Tensor) -> Tensor:
        """Return this rank's share of the average over all targets."""
        return (x_BL * self.is_target_BL).sum() / self.targets

    def of_rows(self, x_BL: Tensor) -> Tensor:
        """Return the sum of each row, over the ranks that share it."""
        total: Tensor = Sum.apply(x_BL.sum(1), self.group)  # type: ignore[no-untyped-call]
        return total

    def once(self, x: Tensor) -> Tensor:
        """Return this rank's share of what all ranks of a sequence compute."""
        share: Tensor = Once.apply(x, self.group.size())  # type: ignore[no-untyped-call]
        return share

    def old(self, name: str) -> Tensor:
        """Return the log-probabilities of another policy in the places of this one's."""
        if self.fault == "old_unshifted":
            return self.cut(self.batch[name])
        return self.next(self.batch[name])

    def advantages(self) -> Tensor:
        gain_B = self.batch["advantages"]
        return gain_B.roll(1) if self.fault == "advantage_of_another_row" else gain_B
