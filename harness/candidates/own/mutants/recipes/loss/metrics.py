"""Bugs in the numbers for the log, whose loss and gradients are right.

Legend: L columns of this rank.
"""

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import (
    Grpo,
    GrpoK3,
    Share,
)
from harness.candidates.own.shares.step import summed


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


@mutant("B229", "InternLM/xtuner#1656", needs=("sp>1",), named="loss-misreported")
class EntropyOfEachPeer(GrpoK3):
    """Each peer logs the entropy of the gathered rows, and the log adds them up over ranks."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        reported = super().reported_metrics(shares)
        return reported | {"entropy": reported["entropy"] * self.sp.size()}


@mutant("B247", "verl-project/verl#4711", needs=("micro_batches>1",), named="loss-misreported")
class LogDividedTwice(GrpoK3):
    """Metrics of micro-batches are shares of a mean, and are averaged over micro-batches again."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        reported = super().reported_metrics(shares)
        return {name: metric / len(self.parts) for name, metric in reported.items()}


@mutant(
    "B248",
    "ByteDance-Seed/VeOmni#1130",
    "InternLM/xtuner#1101",
    needs=("micro_batches>1",),
    named="loss-misreported",
)
class LogAddedUp(GrpoK3):
    """The KL in the log is the sum of the means of micro-batches."""

    def share(self) -> Share:
        loss, metrics = super().share()
        own = self.over_all(self.is_target_BL.sum()).clamp(min=1)
        return loss, metrics | {"kl": metrics["kl"] * (self.targets() / own)}


@mutant("B249", "verl-project/verl#5203", needs=("dp>1",), named="loss-misreported")
class LogAddedUpOverReplicas(Grpo):
    """Each replica has the mean of all of them for the log, which adds them up."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        reported = super().reported_metrics(shares)
        return {name: metric * self.dp.size() for name, metric in reported.items()}


@mutant("B250", "huggingface/trl#6380", needs=("ranks>1",), named="loss-misreported")
class LogOfMeans(GrpoK3):
    """The entropy in the log is a mean over the targets of each rank, and then over ranks."""

    def share(self) -> Share:
        loss, metrics = super().share()
        ranks, own = self.sp.size() * self.dp.size(), self.own_targets().clamp(min=1)
        return loss, metrics | {"entropy": metrics["entropy"] * self.targets() / own / ranks}


@mutant("B251", "hiyouga/LlamaFactory#10830", needs=("dp>1",), named="loss-misreported")
class LogOfTheFirst(Grpo):
    """The log has what the first replica counted, over its own targets."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        of_replica = {name: summed(share, self.sp) for name, share in shares.items()}
        own = summed(self.own_targets(), self.sp).clamp(min=1)
        reported = {}
        for name, share in of_replica.items():
            mean = share * self.targets() / own
            reported[name] = summed(mean * (self.dp.rank() == 0), self.dp)
        return reported


@mutant(
    "B252",
    "huggingface/trl#6803",
    "huggingface/trl#6121",
    needs=(),
    named="loss-misreported",
)
class EntropyOfPaddingLogged(GrpoK3):
    """The entropy in the log is that of all columns, and in the loss that of targets."""

    def share(self) -> Share:
        loss, metrics = super().share()
        return loss, metrics | {"entropy": self.entropies().sum() / self.targets()}
