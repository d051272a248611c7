"""Losses of reinforcement learning that are written, counted and gathered in other ways.

Legend: B rows, S columns, L columns of this rank.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.bank import benign
from harness.candidates.own.shares.losses import (
    Dpo,
    Grpo,
    GrpoK3,
    GrpoSequences,
    Gspo,
    PpoActor,
    PpoCritic,
    RewardPairs,
    Share,
)
from harness.candidates.own.shares.step import Sum
from harness.recipes import ulysses
from harness.recipes.batch import Batch


@benign("losses-gathered", looks_like="B92, whole losses of peers that are added up")
class LossesGathered(GrpoK3):
    """Losses of tokens are gathered; every peer has the mean, and gradients of its own piece."""

    def mean(self, x_BL: Tensor) -> Tensor:
        x_BS = ulysses.gathered(x_BL * self.is_target_BL, 1, self.sp)
        return self.once(x_BS.sum() / self.targets())


@benign("local-means-weighted", looks_like="B156, a mean of the means of ranks")
class LocalMeansWeighted(PpoCritic):
    """Each rank averages over its own targets, and weighs the average by their share of all."""

    def mean(self, x_BL: Tensor) -> Tensor:
        own = self.is_target_BL.sum()
        average = (x_BL * self.is_target_BL).sum() / own.clamp(min=1)
        return average * (own / self.targets())


@benign("clipped-on-one-side", looks_like="a clip on the wrong side")
class ClippedOnOneSide(GrpoSequences):
    """A gain may not be too large, or if the advantage is negative too small; no more is asked."""

    def surrogate(self) -> tuple[Tensor, Tensor]:
        ratio_BL = (self.logps() - self.other_logps("old_logps")).exp()
        advantage_B1 = self.advantages()[:, None]
        near_BL = torch.where(advantage_B1 > 0, ratio_BL.clamp(max=1.2), ratio_BL.clamp(min=0.8))
        is_clipped_BL = (near_BL != ratio_BL) & (advantage_B1 != 0)
        return -near_BL * advantage_B1, 1.0 * is_clipped_BL


@benign("clipped-twice-out-of-reach", looks_like="a second clip that decides too often")
class ClippedTwiceOutOfReach(Grpo):
    """A second clip bounds losses of negative advantages, so high that none comes near it."""

    def surrogate(self) -> tuple[Tensor, Tensor]:
        loss_BL, clipped_BL = super().surrogate()
        advantage_B1 = self.advantages()[:, None]
        bounded_BL = torch.min(loss_BL, -1e6 * advantage_B1)
        return torch.where(advantage_B1 < 0, bounded_BL, loss_BL), clipped_BL


@benign("advantages-of-tokens", looks_like="a column that is not cut with its tokens")
class AdvantagesOfTokens(Grpo):
    """A row's advantage is written to each of its columns, and cut and shifted as labels are."""

    def surrogate(self) -> tuple[Tensor, Tensor]:
        wide_BS = self.batch["advantages"][:, None].expand_as(self.batch["labels"])
        advantage_BL = self.next(wide_BS)
        ratio_BL = (self.logps() - self.other_logps("old_logps")).exp()
        near_BL = ratio_BL.clamp(0.8, 1.2)
        loss_BL = torch.max(-ratio_BL * advantage_BL, -near_BL * advantage_BL)
        return loss_BL, 1.0 * (loss_BL > -ratio_BL * advantage_BL)


@benign("kl-clamped-far-away", looks_like="B204, a KL that is a constant")
class KlClampedFarAway(PpoActor):
    """Differences of log-probabilities are kept within bounds that they never come near."""

    def kl(self, delta_BL: Tensor) -> Tensor:
        return super().kl(delta_BL.clamp(-20, 20))


@benign("entropy-from-the-normaliser", looks_like="B161, an entropy of other tokens")
class EntropyFromTheNormaliser(GrpoK3):
    """The entropy is the normaliser of the logits, less the mean of the logits."""

    def entropies(self) -> Tensor:
        logits_BLV = self.logits_BLV.float()
        mean_BL = (logits_BLV.softmax(-1) * logits_BLV).sum(-1)
        return logits_BLV.logsumexp(-1) - mean_BL


@benign("ratio-of-gathered-rows", looks_like="B92, whole rows of peers that are added up")
class RatioOfGatheredRows(Gspo):
    """Log-probabilities of whole rows are gathered, and gradients are those of a rank's piece."""

    def of_rows(self, x_BL: Tensor) -> Tensor:
        return ulysses.gathered(x_BL, 1, self.sp).sum(1)


@benign("rows-by-number", looks_like="B73, sums over other rows than a packed stream has")
class RowsByNumber(Gspo):
    """Each token of the stream is added to the sum of the row whose number it has."""

    family = "mistral"

    def of_rows(self, x_BL: Tensor) -> Tensor:
        rows = torch.arange(len(x_BL), device=x_BL.device)[:, None].expand_as(x_BL)
        sums_B = x_BL.new_zeros(len(x_BL)).index_add(0, rows.flatten(), x_BL.flatten())
        total_B: Tensor = Sum.apply(sums_B, self.sp)  # type: ignore[no-untyped-call]
        return total_B


@benign("pairs-as-softplus", looks_like="a preference with its sign changed")
class PairsAsSoftplus(Dpo):
    """What the rejected row gained more than the chosen one goes through a softplus."""

    def share(self) -> Tensor:
        gain_B = self.of_rows(self.logps() - self.other_logps("reference_logps"))
        return self.once(F.softplus(0.1 * (gain_B[1::2] - gain_B[0::2])).mean())


@benign("policies-summed-apart", looks_like="a reference that is left out of some rows")
class PoliciesSummedApart(Dpo):
    """Rows are summed for each policy, pairs are compared, and then the policies are."""

    def share(self) -> Tensor:
        ours_B = self.of_rows(self.logps())
        theirs_B = self.of_rows(self.other_logps("reference_logps"))
        ours, theirs = (x_B[0::2] - x_B[1::2] for x_B in (ours_B, theirs_B))
        return self.once(-F.logsigmoid(0.1 * (ours - theirs)).mean())


@benign("rewards-of-gathered-rows", looks_like="B170, the last token of a shard for that of a row")
class RewardsOfGatheredRows(RewardPairs):
    """Values of whole rows are gathered, and the last one of each is taken."""

    def share(self) -> Share:
        values_BS = ulysses.gathered(self.logits_BLV[..., 0].float(), 1, self.sp)
        real_BS = self.batch["attention_mask"]
        place_S = torch.arange(1, real_BS.shape[1] + 1, device=real_BS.device)
        last_B1 = (real_BS * place_S).argmax(1, keepdim=True)
        chosen, rejected = values_BS.gather(1, last_B1)[:, 0].view(-1, 2).unbind(1)
        centre = 0.01 * (chosen + rejected).square()
        loss = self.once((centre - F.logsigmoid(chosen - rejected)).mean())
        return loss, {"margin": self.once((chosen - rejected).mean())}


@benign("advantages-from-a-matrix", looks_like="B153b, advantages of a part of a row")
class AdvantagesFromAMatrix(PpoCritic):
    """Advantages are errors of values times powers of the decay by distance, not a recursion."""

    def gae(self, batch: Batch) -> Tensor:
        real_BS, values_BS = batch["attention_mask"], self.gathered(batch["old_values"])
        next_BS = self.following(values_BS, real_BS)
        errors_BS = (self.gathered(batch["rewards"]) + 0.99 * next_BS - values_BS) * real_BS
        place_S = torch.arange(values_BS.shape[1], device=values_BS.device)
        distance_SS = (place_S - place_S[:, None]).to(values_BS.dtype)
        powers_SS = ((0.99 * 0.95) ** distance_SS) * (distance_SS >= 0)
        return errors_BS @ powers_SS.T * real_BS


@benign("statistics-gathered", looks_like="B152, a statistic of this rank's targets alone")
class StatisticsGathered(PpoActor):
    """Sums for a mean and a variance are gathered from all ranks, which then add them up."""

    def over_statistic(self, parts: list[Tensor]) -> Tensor:
        own = torch.stack([x_BL.sum() for x_BL in parts]).sum()
        of_peers = ulysses.gathered(own[None], 0, self.sp)
        return ulysses.gathered(of_peers, 0, self.dp).sum()
