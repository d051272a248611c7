"""Bugs in losses of other models and of reinforcement learning: what is counted, and over what.

Legend: B rows, S columns, L columns of this rank, V vocabulary, T tokens, E experts.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import (
    KL,
    Balanced,
    BalancedZ,
    Distilled,
    DistilledReverse,
    Dpo,
    Grpo,
    GrpoK3,
    Gspo,
    PpoActor,
    PpoCritic,
    RewardPairs,
    Share,
)
from harness.candidates.own.shares.step import summed
from harness.recipes.batch import Batch

TILE = 8


def is_last(real_BS: Tensor) -> Tensor:
    """Whether a token is the last of its row."""
    return real_BS * (real_BS.flip(1).cumsum(1).flip(1) == 1)


@mutant("B152", "THUDM/slime#2235", needs=("sp>1",), named="statistic-per-rank")
class WhitensItsShard(PpoActor):
    """Advantages are whitened with the mean and the variance of this rank's targets alone."""

    def over_statistic(self, parts: list[Tensor]) -> Tensor:
        return torch.stack([x_BL.sum() for x_BL in parts]).sum()


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


@mutant("B158", "THUDM/slime", needs=("sp>1",), named="label-lost-at-edge")
class RatioWithoutTheEdge(Gspo):
    """Log-probabilities are gathered for a row's ratio without the last token of each shard."""

    def of_rows(self, x_BL: Tensor) -> Tensor:
        return super().of_rows(F.pad(x_BL[:, :-1], (0, 1)))


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


@mutant("B170", "OpenRLHF/OpenRLHF#1182", needs=("sp>1",), named="statistic-per-rank")
class RewardWithoutTheGroup(RewardPairs):
    """The group of peers is not passed on: each takes its own last token for that of the row."""

    def is_last(self) -> Tensor:
        real_BL = self.cut(self.batch["attention_mask"])
        return real_BL * (real_BL.flip(1).cumsum(1).flip(1) == 1)


@mutant("B170b", "OpenRLHF/OpenRLHF#1182", needs=("sp>1",), named="denominator-per-rank")
class RatioWithoutTheGroup(Gspo):
    """The group of peers is not passed on: a row's ratio is that of the targets on each rank."""

    def gains(self) -> Tensor:
        gain_BL = (self.logps() - self.other_logps("old_logps")) * self.is_target_BL
        return gain_BL.sum(1) / self.is_target_BL.sum(1).clamp(min=1)


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


@mutant("B174", "NVIDIA-NeMo/Automodel#1559", needs=(), named="term-misweighted")
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

    def share(self) -> Any:
        loss, metrics = super().share()
        logits_TE = self.router_logits()
        ranks = self.sp.size() * self.dp.size()
        z = (logits_TE.logsumexp(-1) ** 2).sum() / max(len(logits_TE), 1) / ranks
        return loss + self.z * (z - metrics["z"]), metrics | {"z": z}


@mutant("B153", "radixark/miles#1752", needs=("sp>1",), named="column-misplaced")
class GathersUnpaddedRows(PpoCritic):
    """Rewards and values are gathered as if no shard had padding, and the last columns lie."""

    def gathered(self, x_BS: Tensor) -> Tensor:
        own = x_BS.shape[1] // self.sp.size()
        mine_BL = self.cut(x_BS)
        joined_BS = self.whole(mine_BL)
        width = mine_BL.shape[1]
        kept = [joined_BS[:, n * width : n * width + own] for n in range(self.sp.size())]
        whole_BS = torch.cat(kept, 1)
        return F.pad(whole_BS, (0, x_BS.shape[1] - whole_BS.shape[1]))


@mutant("B153b", "radixark/miles#1752", needs=("sp>1",), named="statistic-per-rank")
class AdvantagesOfAShard(PpoCritic):
    """Advantages are computed over the columns of each rank, as if rows ended with them."""

    def gathered(self, x_BS: Tensor) -> Tensor:
        mine_BL, width = self.cut(x_BS), self.cut(x_BS).shape[1]
        alone_BS = torch.zeros_like(self.even(x_BS))
        first = self.sp.rank() * width
        alone_BS[:, first : first + width] = mine_BL
        return alone_BS[:, : x_BS.shape[1]]


@mutant("B218", "verl-project/verl#179", needs=(), named="term-misweighted")
class KlSubtracted(GrpoK3):
    """The KL from the reference is subtracted, so the policy is paid to leave it."""

    def share(self) -> Share:
        loss, metrics = super().share()
        return loss - 2 * 0.1 * metrics["kl"], metrics


@mutant("B219", "ByteDance-Seed/VeOmni#453", needs=(), named="term-misweighted")
class RouterLogitsDropped(Balanced):
    """A patched layer drops the logits of its router, so there is no balance loss."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        return 0 * super().balance(logits_TE, count)


@mutant("B220", "NVIDIA-NeMo/RL#1900", "THUDM/slime#557", needs=(), named="logits-scaled")
class TemperatureOnOneSide(Grpo):
    """One policy's logits are divided by a temperature, and those of the old policy are not."""

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        return super().log_softmax(logits_BLV / 0.8)


@mutant("B221", "verl-project/verl#972", needs=(), named="loss-misreported")
class NothingIsClipped(GrpoK3):
    """The fraction that is clipped compares a minimum with itself, and is always zero."""

    def surrogate(self) -> tuple[Tensor, Tensor]:
        loss_BL, clipped_BL = super().surrogate()
        return loss_BL, torch.zeros_like(clipped_BL)


@mutant("B222", "verl-project/verl#2259", needs=("micro_batches>1",), named="loss-misreported")
class LogsTheLastKl(GrpoK3):
    """The KL in the log is that of the last micro-batch, which takes the place of the others."""

    def share(self) -> Share:
        loss, metrics = super().share()
        is_last = self.batch is self.parts[-1]
        return loss, metrics | {"kl": metrics["kl"] * is_last}


@mutant("B223", "NVIDIA/Megatron-LM#3199", needs=("ranks>1",), named="replica-split")
class LogsItsOwnZ(BalancedZ):
    """The z-loss in the log is not reduced over ranks; each logs that of its own tokens."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().reported_metrics(shares) | {"z": shares["z"]}


@mutant("B224", "NVIDIA-NeMo/RL#730", needs=(), named="column-misplaced")
class PairsByLength(Dpo):
    """Rows are sorted by length before they are paired, so pairs fall apart."""

    def of_rows(self, x_BL: Tensor) -> Tensor:
        lengths_B = self.batch["attention_mask"].sum(1)
        return super().of_rows(x_BL)[lengths_B.argsort(stable=True)]


@mutant("B225", "radixark/miles#1720", needs=("sp>1",), named="column-misplaced")
class RewardOnTheFirstRank(PpoCritic):
    """The last reward of a row goes to the last of its tokens that the first rank has."""

    def gae(self, batch: Batch) -> Tensor:
        real_BS, first_BS = batch["attention_mask"], batch["attention_mask"].clone()
        first_BS[:, self.even(real_BS).shape[1] // self.sp.size() :] = 0
        last_BS = batch["rewards"] * is_last(real_BS)
        moved_BS = is_last(first_BS) * last_BS.sum(1, keepdim=True)
        return super().gae(batch | {"rewards": batch["rewards"] - last_BS + moved_BS})


@mutant("B226", "NVIDIA-NeMo/RL#2530", needs=(), named="column-misplaced")
class ValueOfTheNextRow(PpoCritic):
    """Values are shifted in the packed stream, so the last of a row has the next row's first."""

    def following(self, values_BS: Tensor, real_BS: Tensor) -> Tensor:
        packed_T = values_BS[real_BS.bool()]
        return torch.zeros_like(values_BS).masked_scatter(
            real_BS.bool(), F.pad(packed_T[1:], (0, 1))
        )


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


@mutant("B229", "InternLM/xtuner#1656", needs=("sp>1",), named="loss-misreported")
class EntropyOfEachPeer(GrpoK3):
    """Each peer logs the entropy of the gathered rows, and the log adds them up over ranks."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        reported = super().reported_metrics(shares)
        return reported | {"entropy": reported["entropy"] * self.sp.size()}


LEFT_OUT: dict[str, str] = {
    "B163": "a step trains, and this exchange is left out in evaluation only",
    "B173": "plain training balances the whole batch, so a step cannot balance micro-batches",
    "B178": "no family replays the choices of a router",
    "B179": "no family replays the choices of a router",
    "B180": "no family replays the choices of a router",
    "B185": "no family has an indexer, whose loss is not that of the model",
    "B202": "a path of fp8 kernels, which no CPU and no family here has",
}
