"""Right steps of recipes that scale, count, gather and hold otherwise than the usual one.

Legend: B rows, S columns, L columns of this rank, V vocabulary, T tokens, E experts.
"""

import torch
from torch import Tensor

from harness.candidates.bank import benign
from harness.candidates.own.shares.layouts import Striped, Zigzag
from harness.candidates.own.shares.losses import BalancedZ, Grpo, GrpoK3, PpoCritic, Share
from harness.candidates.own.shares.step import Supervised, summed
from harness.recipes import ulysses


@benign("zigzag-columns", looks_like="B184, pieces put together in another order")
class ZigzagColumns(Zigzag):
    """Each rank holds a piece of a row's front and its mirror; layers with a state sort them."""

    family = "qwen3-next"


@benign("striped-columns", looks_like="B190, positions of other columns than a rank holds")
class StripedColumns(Striped):
    """Columns are dealt to ranks in turn; windows and sinks know the place of each."""

    family = "gpt-oss"


@benign("columns-beyond-the-longest", looks_like="B177, padding that a loss counts")
class ColumnsBeyondTheLongest(BalancedZ):
    """Rows are padded until they are cut into pieces twice as many as there are ranks."""

    def pieces(self) -> int:
        return 2 * self.sp.size()


@benign("loss-times-all-ranks", looks_like="B196, a factor without its counterpart")
class LossTimesAllRanks(Grpo):
    """The loss is multiplied by the number of all ranks, and gradients are averaged over them."""

    def backward(self, share: Tensor) -> None:
        super().backward(share * self.sp.size() * self.dp.size())

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) / (self.sp.size() * self.dp.size())


@benign("losses-gathered", looks_like="B92, whole losses of peers that are added up")
class LossesGathered(GrpoK3):
    """Losses of tokens are gathered; every peer has the mean, and gradients of its own piece."""

    def mean(self, x_BL: Tensor) -> Tensor:
        x_BS = ulysses.gathered(x_BL * self.is_target_BL, 1, self.sp)
        return self.once(x_BS.sum() / self.targets())


@benign("gathered-and-scaled", looks_like="B183, a gather that adds up what was computed twice")
class GatheredAndScaled(Supervised):
    """A gather adds up the gradients of peers, whose loss is divided by their number before."""

    family = "gemma-3"

    def mean(self, x_BL: Tensor) -> Tensor:
        x_BS = ulysses.states(x_BL * self.is_target_BL, self.sp)
        return x_BS.sum() / self.targets() / self.sp.size()


@benign("local-means-weighted", looks_like="B156, a mean of the means of ranks")
class LocalMeansWeighted(PpoCritic):
    """Each rank averages over its own targets, and weighs the average by their share of all."""

    def mean(self, x_BL: Tensor) -> Tensor:
        own = self.is_target_BL.sum()
        average = (x_BL * self.is_target_BL).sum() / own.clamp(min=1)
        return average * (own / self.targets())


@benign("router-logits-gathered", looks_like="B175, a balance of each rank's own choices")
class RouterLogitsGathered(BalancedZ):
    """Every rank gathers the router's logits of its peers, and computes both losses of all."""

    def share(self) -> Share:
        logits_TE, count = self.router_logits(), self.routed()
        balance = self.once(self.balance(logits_TE, count))
        squares = self.once((logits_TE.logsumexp(-1) ** 2).sum() / count)
        loss = Supervised.share(self) + 0.01 * balance + self.z * squares
        return loss, {"balance": balance, "z": squares}

    def router_logits(self) -> Tensor:
        real_T = ulysses.gathered(self.is_routed(), 1, self.sp).flatten()
        rows = len(self.labels_BL)
        layers = [x_TE.view(rows, -1, x_TE.shape[-1]) for x_TE in self.out.router_logits]
        whole = [ulysses.gathered(x_BLE, 1, self.sp).flatten(0, 1) for x_BLE in layers]
        return torch.cat([x_TE[real_T] for x_TE in whole]).float()

    def often(self, chosen_E: Tensor, count: Tensor) -> Tensor:
        return summed(chosen_E, self.dp) / count


@benign("entropy-from-the-normaliser", looks_like="B161, an entropy of other tokens")
class EntropyFromTheNormaliser(GrpoK3):
    """The entropy is the normaliser of the logits, less the mean of the logits."""

    def entropies(self) -> Tensor:
        logits_BLV = self.logits_BLV.float()
        mean_BL = (logits_BLV.softmax(-1) * logits_BLV).sum(-1)
        return logits_BLV.logsumexp(-1) - mean_BL


@benign("zero-times-logits", looks_like="B165, a rank whose loss reaches no layer")
class ZeroTimesLogits(Grpo):
    """Zero times the sum of all logits is added to the loss, so that every rank has a gradient."""

    family = "deepseek-v3"

    def backward(self, share: Tensor) -> None:
        super().backward(share + 0 * self.logits_BLV.sum())
