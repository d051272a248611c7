"""The reduction of gradients over ranks, and the handling of parameters, in other ways."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_

from harness.candidates import Emit, Rank
from harness.candidates.bank import benign
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.rows import Batch
from harness.candidates.own.native.ulysses import sum_gradients
from harness.case import Case
from harness.reference.decoder import Decoder, at_least_fp32


def gradients(model: Decoder) -> list[Tensor]:
    """Return all gradients of the model; a tied weight has only one."""
    return [p.grad for p in model.parameters() if p.grad is not None]


@benign("parameter-by-parameter", looks_like="B123, a parameter left out of the reduction")
class ParameterByParameter(LocalDialect):
    """Each parameter's gradient is reduced in a collective of its own."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for gradient in gradients(model):
            whole = at_least_fp32(gradient)
            dist.all_reduce(whole, group=rank.world)
            gradient.copy_(whole / self.divisor(rank))


@benign("all-at-once", looks_like="B145, gradients used before they are reduced")
class AllAtOnce(GatherDialect):
    """All reductions are under way together, last parameter first, and awaited together."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        started = []
        for gradient in reversed(gradients(model)):
            whole = at_least_fp32(gradient)
            work = dist.all_reduce(whole, group=rank.world, async_op=True)
            started.append((gradient, whole, work))
        for gradient, whole, work in started:
            work.wait()
            gradient.copy_(whole / self.divisor(rank))


@benign("peers-then-replicas", looks_like="B118, one mean over sp and another over dp")
class PeersThenReplicas(GatherDialect):
    """Gradients are averaged over peers of a sequence, and then over replicas."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.sp, divide_by=rank.sp.size())
        sum_gradients(model, rank.dp, divide_by=rank.dp.size())


@benign("replicas-then-peers", looks_like="B119, a reduction over replicas that leaves out peers")
class ReplicasThenPeers(LocalDialect):
    """Gradients are summed over replicas first, and then over peers of a sequence."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.dp, divide_by=1)
        sum_gradients(model, rank.sp, divide_by=1)


@benign("in-slices", looks_like="B96, partial gradients taken for whole ones")
class InSlices(LocalDialect):
    """Each rank sums a slice of all gradients, and the slices are gathered."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        whole = gradients(model)
        sizes = [gradient.numel() for gradient in whole]
        flat = torch.cat([at_least_fp32(gradient).flatten() for gradient in whole])
        flat = torch.cat((flat, flat.new_zeros(-len(flat) % rank.world.size())))
        own = torch.empty_like(flat[: len(flat) // rank.world.size()])
        dist.reduce_scatter_tensor(own, flat, group=rank.world)
        dist.all_gather_into_tensor(flat, own / self.divisor(rank), group=rank.world)
        for gradient, piece in zip(whole, flat[: sum(sizes)].split(sizes), strict=True):
            gradient.copy_(piece.view_as(gradient))


@benign("divided-before-the-sum", looks_like="B120, gradients divided twice")
class DividedBeforeTheSum(GatherDialect):
    """Each rank divides its gradients by the number of ranks before they are summed."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for gradient in gradients(model):
            gradient.div_(self.divisor(rank))
        sum_gradients(model, rank.world, divide_by=1)


@benign("summed-in-fp64", looks_like="B137, a dtype written down")
class SummedInFp64(LocalDialect):
    """Gradients are summed in fp64 and then rounded to what they were."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for gradient in gradients(model):
            whole = gradient.double()
            dist.all_reduce(whole, group=rank.world)
            gradient.copy_(whole / self.divisor(rank))


@benign("every-micro-batch", looks_like="B118, gradients of earlier micro-batches reduced again")
class EveryMicroBatch(GatherDialect):
    """Gradients are reduced after each micro-batch, while those reduced before are put aside."""

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        earlier = [(p, p.grad) for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        loss = super().forward_backward(model, case, batch, targets, rank, emit)
        super().reduce(model, rank)
        for parameter, gradient in earlier:
            assert parameter.grad is not None
            parameter.grad += gradient
        return loss

    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Do nothing: each micro-batch has reduced its gradients."""


@benign("clipped-at-infinity", looks_like="B128, gradients clipped by a wrong norm")
class ClippedAtInfinity(LocalDialect):
    """Gradients are clipped to a norm that none can have."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        clip_grad_norm_(model.parameters(), math.inf)


@benign("zeros-for-none", looks_like="gradients of the step before left in place")
class ZerosForNone(GatherDialect):
    """After a step gradients are filled with zeros instead of being dropped."""

    def update(self, model: Decoder) -> None:
        super().update(model)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)


@benign("weights-from-rank-0", looks_like="ranks that begin with different weights")
class WeightsFromRank0(LocalDialect):
    """Ranks make weights from other seeds, and then all of them take those of rank 0."""

    def model(self, case: Case, rank: Rank) -> Decoder:
        model = super().model(replace(case, seed=case.seed ^ rank.index), rank)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, group=rank.world, group_src=0)
        return model


@benign("reduction-of-nothing", looks_like="B146, a collective that has nothing to do")
class ReductionOfNothing(GatherDialect):
    """All ranks enter a reduction of an empty tensor before the one of gradients."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        dist.all_reduce(torch.zeros(0, device=rank.device), group=rank.world)
        super().reduce(model, rank)
