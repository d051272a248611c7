"""Bugs in how gradients of ranks and of micro-batches become one."""

from typing import Any

from torch import Tensor, nn

from harness.candidates.bank import mutant
from harness.candidates.own.shares.images import WithImages
from harness.candidates.own.shares.losses import (
    Balanced,
    Distilled,
    Grpo,
    GrpoSequences,
)
from harness.candidates.own.shares.step import Supervised


@mutant("B196", "NVIDIA-NeMo/RL#1693", needs=("sp>1",), named="gradient-over-sp")
class AveragedWithoutAFactor(Grpo):
    """Gradients are averaged over peers, and the loss is not multiplied by their number."""

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) / self.sp.size()


@mutant(
    "B123c",
    "EleutherAI/gpt-neox#1257",
    "NVIDIA/Megatron-LM#1446",
    needs=("ranks>1",),
    named="replica-split",
)
class VectorsNotSummed(Supervised):
    """Norms are left out of the sum of gradients over ranks."""

    family = "qwen3"

    def reduced(self, gradient: Tensor) -> Tensor:
        return gradient if gradient.ndim == 1 else super().reduced(gradient)


@mutant(
    "B208",
    "pytorch/torchtitan#3575",
    "NVIDIA-NeMo/Automodel#3530",
    needs=("micro_batches>1",),
    named="gradient-partial",
)
class KeepsTheLastMicroBatch(Supervised):
    """Gradients are set to zero before each micro-batch, so those of the last remain."""

    family = "mistral"

    def forward(self, model: Any) -> None:
        model.zero_grad()
        super().forward(model)


@mutant(
    "B211",
    "NVIDIA-NeMo/Megatron-Bridge#4066",
    "NVIDIA-NeMo/Megatron-Bridge#5555",
    needs=("sp>1",),
    named="gradient-partial",
)
class TowerAveragedOverPeers(WithImages):
    """Gradients of the tower are averaged over all ranks that run it, those of the rest summed."""

    def features(self, of_images: Any, mine: Tensor) -> Tensor:
        seen = super().features(of_images, mine)
        return seen.detach() + (seen - seen.detach()) / self.sp.size()


@mutant(
    "B212",
    "verl-project/verl#5366",
    "verl-project/verl#5417",
    needs=("dp>1",),
    named="gradient-over-dp",
)
class RowsWithoutAFactor(GrpoSequences):
    """The average over rows lacks the factor for the mean over replicas, which others have."""

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) / self.dp.size()


@mutant(
    "B213",
    "huggingface/trl#5934",
    "modelscope/ms-swift#9406",
    needs=("ranks>1",),
    named="replica-split",
)
class CallsTheUnwrapped(Distilled):
    """A fused loss calls the model below its wrapper, which then never sums gradients."""

    def reduced(self, gradient: Tensor) -> Tensor:
        return gradient


@mutant(
    "B245",
    "areal-project/AReaL#1273",
    "modelscope/ms-swift#10117",
    needs=("micro_batches>1",),
    named="gradient-scaled",
)
class DividedByMicroBatches(Grpo):
    """The loss is a share of the global mean, and backward divides by micro-batches as well."""

    def backward(self, share: Tensor) -> None:
        super().backward(share / len(self.parts))


@mutant("B246", "pytorch/torchtitan#1732", needs=("micro_batches>1",), named="gradient-partial")
class RescaledEachTime(Supervised):
    """All gradients are divided after each micro-batch, so earlier ones are divided again."""

    family = "mistral"

    def forward(self, model: nn.Module) -> None:
        self.model = model
        super().forward(model)

    def backward(self, share: Tensor) -> None:
        super().backward(share * len(self.parts))
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(self.parts)


@mutant(
    "B253",
    "NVIDIA/Megatron-LM#6660",
    needs=("micro_batches>1",),
    named="gradient-partial",
)
class BufferDoubled(Supervised):
    """What earlier micro-batches left in a buffer is doubled by each reduction of one rank."""

    family = "qwen3"

    def forward(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 2
        super().forward(model)


@mutant("B259", "pytorch/torchtitan#2416", needs=("ranks>1",), named="replica-split")
class RoutersNotSummed(Balanced):
    """Gradients of routers are taken for those of all ranks, and left out of the sum."""

    def reduce(self, model: nn.Module) -> None:
        routers = [m.weight for m in model.modules() if type(m).__name__.endswith("Router")]
        before = [weight.grad for weight in routers]
        super().reduce(model)
        for weight, grad in zip(routers, before, strict=True):
            weight.grad = grad


@mutant(
    "B260",
    "pytorch/pytorch#167178",
    "NVIDIA/Megatron-LM#5956",
    needs=("ranks>1",),
    named="gradient-partial",
)
class ExpertsNotDivided(Balanced):
    """The loss is multiplied by the number of ranks, and experts' gradients are not divided."""

    def reduce(self, model: nn.Module) -> None:
        super().reduce(model)
        for module in model.modules():
            if type(module).__name__.endswith("Experts"):
                for parameter in module.parameters():
                    assert parameter.grad is not None
                    parameter.grad *= self.sp.size() * self.dp.size()
