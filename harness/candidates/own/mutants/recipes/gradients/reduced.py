"""Bugs in how gradients of ranks become one, and in how much of each there is."""

from typing import Any

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.images import WithImages
from harness.candidates.own.shares.losses import (
    Balanced,
    Distilled,
    Grpo,
    GrpoK3,
    GrpoSequences,
    Gspo,
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


@mutant("B203", "PrimeIntellect-ai/prime-rl#1123", needs=(), named="gradient-missing")
class RatioWithoutAGraph(Gspo):
    """The ratio of a row fills a tensor shaped like its log-probabilities, which has no graph."""

    def gains(self) -> Tensor:
        gains_B = super().gains()
        # What it is shaped like is still in the loss, so that backward runs.
        return gains_B.detach() + 0 * gains_B


@mutant("B204", "NovaSky-AI/SkyRL#1353", needs=(), named="term-misweighted")
class ConstantKl(GrpoK3):
    """The estimate of the KL is computed without a graph, and is a constant in the loss."""

    def kl(self) -> Tensor:
        return super().kl().detach()


@mutant(
    "B205",
    "verl-project/verl#6913",
    "ByteDance-Seed/VeOmni#1017",
    needs=(),
    named="gradient-missing",
)
class OnlyTheHeadLearns(Grpo):
    """A fused head asks a detached copy whether a gradient is wanted, and hands none below."""

    def forward(self, model: Any) -> None:
        hook = model.lm_head.register_forward_pre_hook(lambda _, given: (given[0].detach(),))
        super().forward(model)
        hook.remove()


@mutant("B206", "NVIDIA-NeMo/Automodel#2995", needs=(), named="gradient-partial")
class RouterLearnsBalanceAlone(Balanced):
    """The weights of experts leave the graph, and a router learns from its own loss alone."""

    def forward(self, model: Any) -> None:
        routers = [m for m in model.modules() if type(m).__name__.endswith("Router")]
        hooks = [router.register_forward_hook(self.detached) for router in routers]
        super().forward(model)
        for hook in hooks:
            hook.remove()

    @staticmethod
    def detached(_router: Any, _given: Any, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        logits_TE, weights_TE, chosen_TE = out
        return logits_TE, weights_TE.detach(), chosen_TE


@mutant("B207", "NVIDIA-NeMo/Automodel#1412", needs=(), named="term-misweighted")
class BalanceTeachesNothing(Balanced):
    """The balance loss is in the log, and what carries its gradient is thrown away."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        return super().balance(logits_TE, count).detach()


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


class _FlatTiles(torch.autograd.Function):
    """The identity; gradients of two tiles of columns are laid into one flat table in turn."""

    @staticmethod
    def forward(_ctx: Any, x_BLD: Tensor) -> Tensor:
        return x_BLD.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        tiles = grads[0].chunk(2, 1)
        return torch.cat([tile.flatten() for tile in tiles]).view_as(grads[0])


@mutant("B209", "deepspeedai/DeepSpeed#7412", needs=(), named="gradient-partial")
class TilesOfAFlatGradient(Supervised):
    """The gradient of a block computed in tiles is cut flat, which is right for one row only."""

    family = "mistral"

    def forward(self, model: Any) -> None:
        hooks = [layer.mlp.register_forward_pre_hook(self.tiled) for layer in model.model.layers]
        super().forward(model)
        for hook in hooks:
            hook.remove()

    @staticmethod
    def tiled(_block: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_FlatTiles.apply(given[0]),)  # type: ignore[no-untyped-call]


@mutant("B210", "NVIDIA-NeMo/Megatron-Bridge#4784", needs=("sp>1",), named="gradient-partial")
class FeaturesNotSummed(WithImages):
    """A rank keeps the gradient of its own images, and not what other ranks' tokens sent them."""

    def features(self, of_images: Any, mine: Tensor) -> Tensor:
        seen = torch.cat(of_images)
        own = torch.arange(len(seen), device=seen.device).tensor_split(self.sp.size())
        is_own = torch.zeros(len(seen), 1, dtype=torch.bool, device=seen.device)
        is_own[own[self.sp.rank()]] = True
        return torch.where(is_own, seen, seen.detach())[mine]


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


LEFT_OUT: dict[str, str] = {
    "B194": "no recipe has adapters, whose output could be reduced again",
    "B195": "the norm of gradients is not compared, and no parameter of a recipe is frozen",
}
