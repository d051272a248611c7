"""Log-probabilities, divergences and balances of a recipe computed in other ways.

Legend: B rows, S columns, L columns of this rank, V vocabulary, T tokens, E experts.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.candidates.bank import benign
from harness.candidates.own.shares.losses import (
    Balanced,
    BalancedZ,
    Distilled,
    DistilledReverse,
    Grpo,
    GrpoK1,
    GrpoK2,
    GrpoSequences,
    Share,
)
from harness.candidates.own.shares.step import Supervised, summed
from harness.recipes import ulysses
from harness.recipes.batch import IGNORED


@benign("gathered-and-scaled", looks_like="B183, a gather that adds up what was computed twice")
class GatheredAndScaled(Supervised):
    """A gather adds up the gradients of peers, whose loss is divided by their number before."""

    family = "gemma-3"

    def mean(self, x_BL: Tensor) -> Tensor:
        x_BS = ulysses.states(x_BL * self.is_target_BL, self.sp)
        return x_BS.sum() / self.targets() / self.sp.size()


@benign("logps-from-cross-entropy", looks_like="B95, a cross entropy of somebody's own")
class LogpsFromCrossEntropy(Grpo):
    """Log-probabilities are torch's cross entropy, sign changed, with labels that it ignores."""

    def logps(self) -> Tensor:
        loss_BL = F.cross_entropy(
            self.logits_BLV.float().mT, self.labels_BL, reduction="none", ignore_index=IGNORED
        )
        return -loss_BL


@benign("label-less-the-normaliser", looks_like="a log-probability that overflows")
class LabelLessTheNormaliser(GrpoSequences):
    """A log-probability is the logit of the label, less the log-sum-exp of all logits."""

    def logps(self) -> Tensor:
        logits_BLV, label_BL1 = self.logits_BLV.float(), self.labels_BL.clamp(min=0)[..., None]
        logps_BL = logits_BLV.gather(-1, label_BL1)[..., 0] - logits_BLV.logsumexp(-1)
        return logps_BL.masked_fill(~self.is_target_BL, 0)


@benign("two-columns-at-a-time", looks_like="B96, gradients of chunks that are not joined")
class TwoColumnsAtATime(GrpoK2):
    """Two columns at a time go through the softmax; the last chunk may have only one."""

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        return torch.cat([x_BLV.log_softmax(-1) for x_BLV in logits_BLV.split(2, 1)], 1)


@benign("halves-of-a-normaliser", looks_like="B162, a softmax over another vocabulary")
class HalvesOfANormaliser(GrpoK1):
    """Each half of the vocabulary has a log-sum-exp of its own, and the two are added up."""

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        one_BL, other_BL = (x_BLV.logsumexp(-1) for x_BLV in logits_BLV.tensor_split(2, -1))
        return logits_BLV - torch.logaddexp(one_BL, other_BL)[..., None]


@benign("targets-picked-first", looks_like="B28, supervised tokens compressed out of order")
class TargetsPickedFirst(Supervised):
    """Logits of targets are taken out of all logits before anything is computed of them."""

    family = "qwen3"

    def logps(self) -> Tensor:
        logits_TV = self.logits_BLV[self.is_target_BL].float()
        labels_T = self.labels_BL[self.is_target_BL]
        logps_T = logits_TV.log_softmax(-1).gather(-1, labels_T[:, None])[:, 0]
        empty_BL = logits_TV.new_zeros(self.labels_BL.shape)
        return empty_BL.masked_scatter(self.is_target_BL, logps_T)


@benign("logps-recomputed", looks_like="B148, what runs twice")
class LogpsRecomputed(Grpo):
    """Log-probabilities are computed again in backward, and not kept from forward."""

    family = "gemma-3"

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        again: Any = checkpoint(super().log_softmax, logits_BLV, use_reentrant=False)
        shares_BLV: Tensor = again
        return shares_BLV


@benign("divergence-as-cross-entropy", looks_like="B160, a divergence without one of its terms")
class DivergenceAsCrossEntropy(Distilled):
    """The divergence is the cross entropy of the two, less the entropy of the teacher."""

    def divergence(self, p_BLV: Tensor, q_BLV: Tensor) -> Tensor:
        return (p_BLV.exp() * p_BLV).sum(-1) - (p_BLV.exp() * q_BLV).sum(-1)


@benign("divergence-of-torch", looks_like="a divergence whose two sides change places")
class DivergenceOfTorch(DistilledReverse):
    """Torch computes the divergence; it takes the second distribution first."""

    def divergence(self, p_BLV: Tensor, q_BLV: Tensor) -> Tensor:
        return F.kl_div(q_BLV, p_BLV, reduction="none", log_target=True).sum(-1)


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


@benign("experts-counted-by-number", looks_like="B175, choices of other tokens")
class ExpertsCountedByNumber(Balanced):
    """The numbers of chosen experts are counted, where ones in a table would be added up."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        shares_TE = self.shares(logits_TE)
        experts = shares_TE.shape[1]
        numbers = shares_TE.detach().topk(2).indices.flatten()
        chosen_E = numbers.bincount(minlength=experts).to(shares_TE.dtype)
        return experts * (self.often(chosen_E, count) @ shares_TE.sum(0)) / count


@benign("zero-times-logits", looks_like="B165, a rank whose loss reaches no layer")
class ZeroTimesLogits(Grpo):
    """Zero times the sum of all logits is added to the loss, so that every rank has a gradient."""

    family = "deepseek-v3"

    def backward(self, share: Tensor) -> None:
        super().backward(share + 0 * self.logits_BLV.sum())
