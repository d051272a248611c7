"""Give lmms-engine's patched forwards a loss that needs no GPU."""

from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.lmms_engine import library


class PlainLoss:
    """What Liger's fused head and loss computes, in plain torch."""

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction

    def __call__(self, weight: Tensor, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(hidden, weight).float()
        return F.cross_entropy(logits, labels, reduction=self.reduction)


def install() -> None:
    for module in library.forwards.values():
        vars(module)["LigerFusedLinearCrossEntropyLoss"] = PlainLoss
