"""Steps on shards of any family and loss, with one fault each.

`any_model.py:gpt_oss__grpo` is right; `any_model.py:gpt_oss__grpo__sinks_uncut` has that fault.
A fault is a class with the methods that it replaces; many are mutants of the bank.

Legend: B rows, S columns, L columns of this rank, V vocabulary.
"""

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.own.mutants import BANK
from harness.candidates.own.shares import losses as of_shards
from harness.candidates.own.shares import step_of
from harness.candidates.own.shares.step import Supervised
from harness.recipes import ulysses
from harness.recipes.batch import IGNORED

visible = ulysses.visible
# Faults that are mutants of the bank.
MUTANTS = {
    "sinks_uncut": "B181",
    "window_ignored": "B57c",
    "padding_attended": "B57d",
    "positions_restarted": "B29b",
    "state_restarted": "B52",
    "labels_rolled_locally": "B13b",
    "old_unshifted": "B27",
    "teacher_uncut": "B167",
    "whitened_by_shard": "B152",
    "advantages_of_a_shard": "B153b",
    "entropy_with_padding": "B161",
    "ratio_of_a_shard": "B170b",
    "reward_of_a_shard": "B170",
    "balance_of_a_rank": "B175",
    "router_with_padding": "B177",
    "z_of_a_rank": "B177b",
    "vectors_not_summed": "B123c",
}


class FutureAttended(Supervised):
    def attention(self, *given: Any, **named: Any) -> Any:
        def seen(real_BS: Tensor, place_S: Tensor, window: int) -> Tensor:
            is_later_SS = place_S[:, None] < place_S
            return visible(real_BS, place_S, window) | is_later_SS & real_BS[:, None]

        with patch.object(ulysses, "visible", seen):
            return super().attention(*given, **named)


class ShardAttended(Supervised):
    def attention(self, *given: Any, **named: Any) -> Any:
        def seen(real_BS: Tensor, place_S: Tensor, window: int) -> Tensor:
            shard_S = place_S // (len(place_S) // self.sp.size())
            return visible(real_BS, place_S, window) & (shard_S[:, None] == shard_S)

        with patch.object(ulysses, "visible", seen):
            return super().attention(*given, **named)


class LabelsUnshifted(Supervised):
    def cut_labels(self) -> Tensor:
        return self.cut(self.batch["labels"], IGNORED)


class TokensCountedLocally(Supervised):
    def targets(self) -> Tensor:
        return self.own_targets().clamp(min=1) * self.sp.size() * self.dp.size()


class GradientsHalved(Supervised):
    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) / 2


class LossNotSummed(Supervised):
    def reported(self, share: Tensor) -> Tensor:
        return share


class MetricOfARank(Supervised):
    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        return shares


class MetricsLeftOut(Supervised):
    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        return {}


class MetricMisspelled(Supervised):
    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"{name}s": x for name, x in super().reported_metrics(shares).items()}


class AdvantageOfAnotherRow(of_shards.Grpo):
    def advantages(self) -> Tensor:
        return super().advantages().roll(1)


class RowsCountedLocally(of_shards.GrpoSequences):
    def targets_of_rows(self) -> Tensor:
        return self.is_target_BL.sum(1).clamp(min=1)


class SumOfAShard(of_shards.Dpo):
    def of_rows(self, x_BL: Tensor) -> Tensor:
        return x_BL.sum(1)


class OldForReference(of_shards.GrpoK3):
    def other_logps(self, name: str) -> Tensor:
        del name
        return super().other_logps("old_logps")


class EntropyUnshifted(of_shards.GrpoK3):
    def entropy(self) -> Tensor:
        is_target_BL = self.cut(self.batch["labels"], IGNORED) != IGNORED
        return (self.entropies() * is_target_BL).sum() / self.targets()


class KlMissing(of_shards.GrpoK3):
    def share(self) -> of_shards.Share:
        loss, metrics = super().share()
        return loss - 0.1 * metrics["kl"], metrics


class RewardAtPadding(of_shards.RewardPairs):
    def is_last(self) -> Tensor:
        real_BS = self.batch["attention_mask"]
        return self.cut(F.pad(torch.zeros_like(real_BS)[:, 1:], (0, 1), value=1))


class BalanceOfAllRanks(of_shards.Balanced):
    def share(self) -> of_shards.Share:
        loss, metrics = super().share()
        more = self.sp.size() * self.dp.size() - 1
        return loss + more * 0.01 * metrics["balance"], metrics


class OtherDirection(of_shards.Distilled):
    def divergence(self, p_BLV: Tensor, q_BLV: Tensor) -> Tensor:
        return super().divergence(q_BLV, p_BLV)


FAULTS: dict[str, type] = {name: type(BANK[key].candidate) for name, key in MUTANTS.items()} | {
    "future_attended": FutureAttended,
    "shard_attended": ShardAttended,
    "labels_unshifted": LabelsUnshifted,
    "tokens_counted_locally": TokensCountedLocally,
    "gradients_halved": GradientsHalved,
    "loss_not_summed": LossNotSummed,
    "metric_of_a_rank": MetricOfARank,
    "metrics_left_out": MetricsLeftOut,
    "metric_misspelled": MetricMisspelled,
    "advantage_of_another_row": AdvantageOfAnotherRow,
    "rows_counted_locally": RowsCountedLocally,
    "sum_of_a_shard": SumOfAShard,
    "old_for_reference": OldForReference,
    "entropy_unshifted": EntropyUnshifted,
    "kl_missing": KlMissing,
    "reward_at_padding": RewardAtPadding,
    "balance_of_all_ranks": BalanceOfAllRanks,
    "other_direction": OtherDirection,
}


def __getattr__(name: str) -> Any:
    """Return the step `FAMILY__LOSS` or `FAMILY__LOSS__FAULT`."""
    family, _, rest = name.partition("__")
    loss, _, fault = rest.partition("__")
    return step_of(f"{family}__{loss}", *([FAULTS[fault]] if fault else []))
