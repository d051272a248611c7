"""Bugs in what a loss of a recipe counts, and in how its terms are weighed.

Legend: B rows, S columns, L columns of this rank, V vocabulary, T tokens.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import (
    KL,
    Distilled,
    DistilledReverse,
    Grpo,
    GrpoK3,
    GrpoSequences,
    PpoActor,
    PpoCritic,
    Share,
)
from harness.candidates.own.shares.step import summed
from harness.recipes.batch import IGNORED

TILE = 8


@mutant("B154", "verl-project/verl#6836", needs=(), named="denominator-wrong-count")
class ReturnsNoCount(Grpo):
    """The count of targets is lost on the way to the loss, whose sum is not divided."""

    def targets(self) -> Tensor:
        return torch.tensor(1)


@mutant("B155", "verl-project/verl#6957", needs=("micro_batches>1",), named="denominator-per-part")
class ValuesByMicroBatch(PpoCritic):
    """The loss of values is averaged in each micro-batch, and the averages are averaged."""

    def own_targets(self) -> Tensor:
        return self.is_target_BL.sum()

    def targets(self) -> Tensor:
        return super().targets() * len(self.parts)


@mutant(
    "B156", "PrimeIntellect-ai/prime-rl#2562", needs=("ranks>1",), named="denominator-per-rank"
)
class DividesByItsOwn(Grpo):
    """Each rank divides by the number of its own targets, and the ranks are averaged."""

    def targets(self) -> Tensor:
        ranks = self.sp.size() * self.dp.size()
        return self.own_targets().clamp(min=1) * ranks


@mutant("B157", "THUDM/slime#365", needs=(), named="denominator-wrong-count")
class CountsLengths(Grpo):
    """The divisor is the length of the rows, not the number of targets in them."""

    def own_targets(self) -> Tensor:
        counts = [self.cut(part["attention_mask"]).sum() for part in self.parts]
        return torch.stack(counts).sum()


@mutant("B159", "THUDM/slime#1372", needs=(), named="mask-replaced")
class KlOfAllTokens(PpoActor):
    """The KL penalty is not masked: it counts tokens that are not trained on."""

    def kl(self, delta_BL: Tensor) -> Tensor:
        del delta_BL
        ids_BL = self.next(self.batch["input_ids"])
        is_real_BL = self.next(self.batch["attention_mask"] * (self.batch["position_ids"] > 0))
        shares_BLV = self.log_softmax(self.logits_BLV.float())
        logps_BL = shares_BLV.gather(-1, ids_BL[..., None])[..., 0]
        delta_BL = logps_BL - self.other_logps("old_logps")
        return (KL["k3"](delta_BL) * is_real_BL).sum() / self.targets()


@mutant("B160", "NVIDIA-NeMo/RL#2506", needs=(), named="gradient-partial")
class WithoutScore(DistilledReverse):
    """The reverse KL weighs what it compares by detached probabilities, so it teaches nothing."""

    def divergence(self, p_BLV: Tensor, q_BLV: Tensor) -> Tensor:
        return (p_BLV.detach().exp() * (p_BLV - q_BLV)).sum(-1)


@mutant("B161", "modelscope/ms-swift#5164", needs=(), named="pad-leak")
class EntropyOfPadding(GrpoK3):
    """Padding is taken out of log-probabilities, and not out of entropies, which count it."""

    def entropy(self) -> Tensor:
        return self.entropies().sum() / self.targets()


@mutant("B162", "verl-project/verl#5349", needs=(), named="pad-leak")
class TileBeyondTheVocabulary(Grpo):
    """The vocabulary is read in tiles, and the last one adds exp(0) for each column beyond it."""

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        beyond = -logits_BLV.shape[-1] % TILE
        return F.pad(logits_BLV, (0, beyond)).log_softmax(-1)


@mutant("B166", "verl-project/verl#7225", needs=("micro_batches>1",), named="denominator-per-part")
class DistilsByMicroBatch(Distilled):
    """The divergence from the teacher is averaged in each micro-batch, then over micro-batches."""

    def own_targets(self) -> Tensor:
        return self.is_target_BL.sum()

    def targets(self) -> Tensor:
        return super().targets() * len(self.parts)


@mutant("B218", "verl-project/verl#179", needs=(), named="term-misweighted")
class KlSubtracted(GrpoK3):
    """The KL from the reference is subtracted, so the policy is paid to leave it."""

    def share(self) -> Share:
        loss, metrics = super().share()
        return loss - 2 * 0.1 * metrics["kl"], metrics


@mutant("B227", "verl-project/verl#5983", needs=("sp>1",), named="denominator-per-rank")
class CountsOverReplicasAlone(Grpo):
    """Targets are counted over replicas alone, so each peer divides by the count of its shards."""

    def targets(self) -> Tensor:
        return summed(self.own_targets(), self.dp).clamp(min=1) * self.sp.size()


@mutant("B228", "OpenRLHF/OpenRLHF#1319", needs=(), named="logits-scaled")
class EntropyBeforeTheTemperature(GrpoK3):
    """A temperature divides the policy's logits after the entropy has been computed from them."""

    def entropies(self) -> Tensor:
        logps_BLV = self.log_softmax(self.logits_BLV.float() * 0.8)
        return -(logps_BLV.exp() * logps_BLV).sum(-1)


@mutant("B235", "radixark/miles#2796", needs=(), named="denominator-clamped")
class RowsCountAtLeastOne(Grpo):
    """A row without targets is counted as if it had one."""

    def targets(self) -> Tensor:
        labels = [F.pad(part["labels"][:, 1:], (0, 1), value=IGNORED) for part in self.parts]
        counts = [(labels_BS != IGNORED).sum(1).clamp(min=1).sum() for labels_BS in labels]
        return summed(torch.stack(counts).sum(), self.dp)


@mutant("B236", "alibaba/ROLL#444", needs=(), named="loss-misreported")
class SumOfAllColumns(Grpo):
    """The loss is summed over all columns, and divided by the number of targets."""

    def mean(self, x_BL: Tensor) -> Tensor:
        return x_BL.sum() / self.targets()


@mutant(
    "B237",
    "huggingface/trl#6654",
    "unslothai/unsloth-zoo#1282",
    needs=(),
    named="weights-wrong",
)
class RowsByTheirWidth(GrpoSequences):
    """Each row is averaged over its columns, padding included, and not over its targets."""

    def targets_of_rows(self) -> Tensor:
        return torch.full_like(super().targets_of_rows(), self.batch["labels"].shape[1])


@mutant("B238", "NVIDIA-NeMo/RL#3791", needs=("micro_batches>1",), named="denominator-per-part")
class KlByMicroBatch(GrpoK3):
    """The KL is averaged over each micro-batch and added to a mean over all of them."""

    def kl(self) -> Tensor:
        own = self.over_all(self.is_target_BL.sum()).clamp(min=1)
        return super().kl() * (self.targets() / own / len(self.parts))


@mutant("B239", "NVIDIA-NeMo/Automodel#3846", needs=("ranks>1",), named="denominator-per-rank")
class MeansOfRanksSummed(Distilled):
    """Each rank averages over its own targets, and the averages of ranks are added up."""

    def targets(self) -> Tensor:
        return self.own_targets().clamp(min=1)


@mutant(
    "B240",
    "NVIDIA-NeMo/Automodel#3829",
    needs=("micro_batches>1",),
    named="denominator-per-part",
)
class MeansOfMicroBatchesSummed(Grpo):
    """The loss is averaged over each micro-batch, and the averages are added up."""

    def own_targets(self) -> Tensor:
        return self.is_target_BL.sum()


@mutant("B241", "THUDM/slime#1377", needs=("sp>1",), named="label-lost-at-edge")
class EntropyTrimmedTwice(GrpoK3):
    """The last rank trims the last column, and once more for the entropy."""

    def entropies(self) -> Tensor:
        entropies_BL = super().entropies()
        columns = self.batch["labels"].shape[1]
        is_trimmed_BS = torch.arange(columns, device=entropies_BL.device) == columns - 2
        is_trimmed_BL = self.cut(is_trimmed_BS.expand_as(self.batch["labels"]))
        return entropies_BL.masked_fill(is_trimmed_BL, 0) if self.sp.size() > 1 else entropies_BL
