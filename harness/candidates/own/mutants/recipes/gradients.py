"""Bugs in how gradients of ranks become one, and in how much of each there is."""

from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import Grpo
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


LEFT_OUT: dict[str, str] = {
    "B194": "no recipe has adapters, whose output could be reduced again",
    "B195": "the norm of gradients is not compared, and no parameter of a recipe is frozen",
}
