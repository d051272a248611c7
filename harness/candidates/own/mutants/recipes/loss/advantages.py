"""Bugs in advantages, ratios and rewards, which are computed over whole rows or the batch.

Legend: B rows, S columns, L columns of this rank, V vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import (
    Dpo,
    Grpo,
    Gspo,
    PpoActor,
    PpoCritic,
    RewardPairs,
)
from harness.recipes.batch import IGNORED, Batch


def is_last(real_BS: Tensor) -> Tensor:
    """Whether a token is the last of its row."""
    return real_BS * (real_BS.flip(1).cumsum(1).flip(1) == 1)


@mutant("B152", "THUDM/slime#2235", needs=("sp>1",), named="statistic-per-rank")
class WhitensItsShard(PpoActor):
    """Advantages are whitened with the mean and the variance of this rank's targets alone."""

    def over_statistic(self, parts: list[Tensor]) -> Tensor:
        return torch.stack([x_BL.sum() for x_BL in parts]).sum()


@mutant("B158", "THUDM/slime", needs=("sp>1",), named="label-lost-at-edge")
class RatioWithoutTheEdge(Gspo):
    """Log-probabilities are gathered for a row's ratio without the last token of each shard."""

    def of_rows(self, x_BL: Tensor) -> Tensor:
        return super().of_rows(F.pad(x_BL[:, :-1], (0, 1)))


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


@mutant("B220", "NVIDIA-NeMo/RL#1900", "THUDM/slime#557", needs=(), named="logits-scaled")
class TemperatureOnOneSide(Grpo):
    """One policy's logits are divided by a temperature, and those of the old policy are not."""

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        return super().log_softmax(logits_BLV / 0.8)


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


@mutant("B230", "areal-project/AReaL#1346", needs=(), named="weights-wrong")
class AdvantagesOfPadding(Gspo):
    """A row's advantage is the sum over all of its columns, divided by its targets."""

    def advantages(self) -> Tensor:
        columns = self.batch["labels"].shape[1]
        return super().advantages() * columns / self.targets_of_rows()


@mutant("B231", "unslothai/unsloth-zoo#870", needs=(), named="weights-wrong")
class MeanOfRatios(Gspo):
    """The ratio of a row is the mean of its targets' ratios, not the exponential of a mean."""

    def gains(self) -> Tensor:
        delta_BL = self.logps() - self.other_logps("old_logps")
        ratio_B = self.of_rows(delta_BL.exp() * self.is_target_BL) / self.targets_of_rows()
        return torch.where(ratio_B > 0, ratio_B, 1).log()


@mutant("B232", "NovaSky-AI/SkyRL#1305", needs=(), named="pad-leak")
class MeanOfPadding(PpoActor):
    """Advantages are centred on the mean of all columns, padding and prompts included."""

    def whitened(self) -> Tensor:
        gains = [self.cut(self.gae(part)) for part in self.parts]
        masks = [self.cut(part["labels"], IGNORED) != IGNORED for part in self.parts]
        mean = self.over_statistic(gains) / self.over_statistic(list(map(torch.ones_like, gains)))
        count = self.over_statistic(masks).clamp(min=1)
        centred = [(x - mean) * mask for x, mask in zip(gains, masks, strict=True)]
        variance = self.over_statistic([x.square() for x in centred]) / count
        here = next(n for n, part in enumerate(self.parts) if part is self.batch)
        return centred[here] * (variance + 1e-8).rsqrt()


@mutant("B233", "verl-project/verl#7300", needs=(), named="weights-wrong")
class ReturnsStopAtPrompts(PpoCritic):
    """What comes later is multiplied by the loss mask, so nothing reaches back over a prompt."""

    def gae(self, batch: Batch) -> Tensor:
        is_target_BS = batch["labels"] != IGNORED
        real_BS, values_BS = batch["attention_mask"], self.gathered(batch["old_values"])
        next_BS = self.following(values_BS, real_BS)
        errors_BS = (self.gathered(batch["rewards"]) + 0.99 * next_BS - values_BS) * real_BS
        gains_BS, later = torch.zeros_like(values_BS), torch.zeros_like(values_BS[:, 0])
        for column in reversed(range(values_BS.shape[1])):
            later = errors_BS[:, column] + 0.99 * 0.95 * later
            gains_BS[:, column] = later * real_BS[:, column]
            later = later * is_target_BS[:, column]
        return gains_BS


@mutant("B234", "NVIDIA-NeMo/RL#2837", needs=("sp>1",), named="statistic-per-rank")
class ValuesShiftedByShard(PpoCritic):
    """Each rank shifts the values of its columns, so the last of a shard has none behind it."""

    def following(self, values_BS: Tensor, real_BS: Tensor) -> Tensor:
        del real_BS
        shifted_BL = F.pad(self.cut(values_BS)[:, 1:], (0, 1))
        return self.whole(shifted_BL)[:, : values_BS.shape[1]]
