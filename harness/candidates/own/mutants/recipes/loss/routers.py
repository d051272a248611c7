"""Bugs in the losses of routers, which balance the choices of experts.

Legend: B rows, L columns of this rank, T tokens, E experts.
"""

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import (
    Balanced,
    BalancedZ,
    Share,
)


@mutant("B171", "NVIDIA/Megatron-LM#2237", needs=("sp>1",), named="term-misweighted")
class BalanceOverPeers(Balanced):
    """The balance loss is averaged over peers like a mean, though each has a share of its sum."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        return super().balance(logits_TE, count) / self.sp.size()


@mutant("B172", "NVIDIA/Megatron-LM#5047", needs=("sp>1",), named="term-misweighted")
class BalanceOfOwnTokens(Balanced):
    """The balance loss is multiplied by this rank's number of tokens, not by that of all ranks."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        return super().balance(logits_TE, count) * (len(logits_TE) / count)


@mutant("B174", "NVIDIA-NeMo/Automodel#1559", needs=(), named="term-wrong")
class BalanceOfRawLogits(Balanced):
    """The balance loss takes the router's logits for probabilities, without a softmax."""

    def shares(self, logits_TE: Tensor) -> Tensor:
        return logits_TE


@mutant("B175", "modelscope/ms-swift#5316", needs=("ranks>1",), named="statistic-per-rank")
class BalanceOfItsOwn(Balanced):
    """Router logits are not gathered: each rank balances the choices of its own tokens."""

    def often(self, chosen_E: Tensor, count: Tensor) -> Tensor:
        return chosen_E / count

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        ranks = count.new_tensor(self.sp.size() * self.dp.size())
        own = count.new_tensor(len(logits_TE)).clamp(min=1)
        return super().balance(logits_TE, own) / ranks


@mutant("B176", "pytorch/torchtitan#3604", needs=("sp>1",), named="mask-replaced")
class IndexOfOneRow(Balanced):
    """A rank finds its tokens in the router's mask at its offset, which is right for one row."""

    def is_routed(self) -> Tensor:
        real_BS = self.even(self.batch["attention_mask"]).bool()
        real_T = real_BS.flatten().chunk(self.sp.size())[self.sp.rank()]
        return real_T.view(len(real_BS), -1)


@mutant("B177", "NVIDIA/Megatron-LM#7238", needs=(), named="pad-leak")
class RouterCountsPadding(BalancedZ):
    """Padding goes through the router like a token, and its choices and logits are counted."""

    def is_routed(self) -> Tensor:
        return torch.ones_like(self.labels_BL, dtype=torch.bool)


@mutant("B177b", "NVIDIA/Megatron-LM#5047", needs=("ranks>1",), named="statistic-per-rank")
class RouterLogitsOfARank(BalancedZ):
    """The z-loss is averaged over the tokens of each rank, and then over ranks."""

    def share(self) -> Share:
        loss, metrics = super().share()
        logits_TE = self.router_logits()
        ranks = self.sp.size() * self.dp.size()
        z = (logits_TE.logsumexp(-1) ** 2).sum() / max(len(logits_TE), 1) / ranks
        return loss + self.z * (z - metrics["z"]), metrics | {"z": z}


@mutant("B219", "ByteDance-Seed/VeOmni#453", needs=(), named="term-misweighted")
class RouterLogitsDropped(Balanced):
    """A patched layer drops the logits of its router, so there is no balance loss."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        return 0 * super().balance(logits_TE, count)


@mutant("B223", "NVIDIA/Megatron-LM#3199", needs=("ranks>1",), named="replica-split")
class LogsItsOwnZ(BalancedZ):
    """The z-loss in the log is not reduced over ranks; each logs that of its own tokens."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().reported_metrics(shares) | {"z": shares["z"]}


@mutant("B261", "NVIDIA/Megatron-LM#5798", needs=(), named="term-misweighted")
class BalanceDividedByRows(Balanced):
    """The gradient of the balance loss is divided by a count that leaves out the rows."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        balance = super().balance(logits_TE, count)
        return balance.detach() + (balance - balance.detach()) / len(self.labels_BL)


@mutant("B257", "huggingface/transformers#45111", needs=(), named="term-wrong")
class BalanceOfProbabilities(Balanced):
    """The balance loss takes the softmax of what is one already."""

    def shares(self, logits_TE: Tensor) -> Tensor:
        return super().shares(super().shares(logits_TE))


@mutant("B262", "NVIDIA-NeMo/Automodel#1408", needs=(), named="term-misweighted")
class CoefficientAsASwitch(Balanced):
    """The coefficient of the balance loss says whether it counts, and does not multiply it."""

    def share(self) -> Share:
        loss, metrics = super().share()
        return loss + (1 - 0.01) * metrics["balance"], metrics


@mutant(
    "B263",
    "paiml/aprender#2162",
    "mindspore-ai/hyper-parallel#752",
    needs=(),
    named="term-wrong",
)
class BalanceOfTheChosen(Balanced):
    """The balance loss averages the probabilities of chosen experts, and not those of all."""

    def shares(self, logits_TE: Tensor) -> Tensor:
        shares_TE = super().shares(logits_TE)
        return shares_TE * torch.zeros_like(shares_TE).scatter(1, shares_TE.topk(2).indices, 1)
