"""Gradients of a recipe's parameters that are scaled and reduced in other ways."""

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates.bank import benign
from harness.candidates.own.shares.losses import (
    Distilled,
    Grpo,
    GrpoK3,
    GrpoSequences,
    PpoCritic,
)
from harness.candidates.own.shares.step import Supervised, summed


@benign("loss-times-all-ranks", looks_like="B196, a factor without its counterpart")
class LossTimesAllRanks(Grpo):
    """The loss is multiplied by the number of all ranks, and gradients are averaged over them."""

    def backward(self, share: Tensor) -> None:
        super().backward(share * self.sp.size() * self.dp.size())

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) / (self.sp.size() * self.dp.size())


@benign("loss-times-replicas", looks_like="B212, a mean over replicas without its factor")
class LossTimesReplicas(GrpoSequences):
    """Gradients are summed over peers and averaged over replicas, whose number is in the loss."""

    def backward(self, share: Tensor) -> None:
        super().backward(share * self.dp.size())

    def reduced(self, gradient: Tensor) -> Tensor:
        return summed(summed(gradient, self.sp), self.dp) / self.dp.size()


@benign("divided-at-the-end", looks_like="B154, a sum that nobody divides")
class DividedAtTheEnd(GrpoK3):
    """Backward begins with sums over targets, and gradients are divided by their number."""

    def backward(self, share: Tensor) -> None:
        super().backward(share * self.targets())

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) / self.targets()


@benign("scaled-up-for-backward", looks_like="B89, gradients a thousand times too large")
class ScaledUpForBackward(PpoCritic):
    """Backward begins with a power of two times the loss; gradients are divided by it again."""

    def backward(self, share: Tensor) -> None:
        super().backward(share * 1024)

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient / 1024)


@benign("backward-once", looks_like="B208, gradients of one micro-batch only")
class BackwardOnce(Supervised):
    """Losses of all micro-batches are added up, and go backward together at the end."""

    family = "mistral"

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[Tensor] = []

    def backward(self, share: Tensor) -> None:
        # A new list: the one before belongs to the step that this one is a copy of.
        self.shares = [*self.shares, share]

    def reduce(self, model: nn.Module) -> None:
        super().backward(torch.stack(self.shares).sum())
        super().reduce(model)


@benign("reduced-every-micro-batch", looks_like="B118, gradients that are reduced more than once")
class ReducedEveryMicroBatch(Grpo):
    """Gradients are reduced after each micro-batch, while those reduced before are put aside."""

    family = "qwen3"

    def forward(self, model: nn.Module) -> None:
        self.model, self.before = model, [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        super().forward(model)

    def backward(self, share: Tensor) -> None:
        super().backward(share)
        Supervised.reduce(self, self.model)
        for parameter, before in zip(self.model.parameters(), self.before, strict=True):
            if before is not None and parameter.grad is not None:
                parameter.grad += before

    def reduce(self, model: nn.Module) -> None:
        """Do nothing: it has been done."""


class Flat(Supervised):
    """All gradients are one vector."""

    def reduce(self, model: nn.Module) -> None:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        flat = self.reduced(torch.cat([grad.flatten() for grad in grads]))
        pieces = flat.split([grad.numel() for grad in grads])
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter)


@benign("one-flat-gradient", looks_like="B123, a parameter left out of the reduction")
class OneFlatGradient(Flat):
    """Gradients of all parameters are joined, and reduced in one collective."""

    family = "deepseek-v3"


@benign("slices-of-a-flat-gradient", looks_like="B96, partial gradients taken for whole ones")
class SlicesOfAFlatGradient(Flat, Distilled):
    """Each peer sums a slice of the joined gradients, and the slices are gathered."""

    def reduced(self, gradient: Tensor) -> Tensor:
        size, peers = len(gradient), self.sp.size()
        even = F.pad(gradient, (0, -size % peers))
        own = even.new_empty(len(even) // peers)
        dist.reduce_scatter_tensor(own, even, group=self.sp)
        joined = torch.empty_like(even)
        dist.all_gather_into_tensor(joined, summed(own, self.dp), self.sp)
        return joined[:size]
