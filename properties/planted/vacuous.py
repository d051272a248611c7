"""Steps that share nothing, and whose every number is right all the same."""

from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.exchange import gather_tokens, scatter_tokens
from harness.candidates.own.native.rows import Batch
from harness.candidates.own.native.ulysses import Shard, Stream, cut
from harness.case import Case
from harness.reference.decoder import Decoder
from harness.watch.flight_recorder import BUFFER


class ComputesAll(LocalDialect):
    """Every rank computes on all tokens, and says of a few of them that they are its own."""

    name = "computes-all"

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        mine = super().shard(case, stream, rank)
        return replace(
            mine,
            ids_L=stream.ids_T,
            positions_L=stream.positions_T,
            labels_L=stream.labels_T,
            tokens_L=stream.tokens_T,
            positions_TP=stream.positions_T,
            pad=0,
        )

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        self.show(q_LNH, rank)
        return self.kernel(case)(q_LNH, k_LKH, v_LKH, segments)

    def show(self, q_LNH: Tensor, rank: Rank) -> None:
        """What is sent to be seen."""

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return weights_T * self.own(len(weights_T), rank)

    def own(self, total: int, rank: Rank) -> Tensor:
        """Of all tokens, those that this rank calls its own."""
        places_T = torch.arange(total, device=rank.device)
        mine_T = cut(places_T, rank, -1)
        return torch.isin(places_T, mine_T)

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        def of_own(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if tokens is None:
                emit(key, tensor)
            else:
                own = self.own(len(tokens), rank)
                emit(key, tensor[own], tokens[own])

        return super().forward_backward(model, case, batch, targets, rank, of_own)


class AllToAllForShow(ComputesAll):
    """The same, and zeros are exchanged."""

    name = "all-to-all-for-show"

    def show(self, q_LNH: Tensor, rank: Rank) -> None:
        zeros = q_LNH.new_zeros(rank.sp.size())
        dist.all_to_all_single(torch.empty_like(zeros), zeros, group=rank.sp)


class KeysSummedForShow(ComputesAll):
    """The same, and all ranks sum up what none of them needs, flat as gradients are."""

    name = "sums-for-show"

    def show(self, q_LNH: Tensor, rank: Rank) -> None:
        dist.all_reduce(q_LNH.detach().clone().flatten(), group=rank.sp)


class Broadcasts(ComputesAll):
    """The same, where all begin with the weights of rank 0, as trainers do."""

    name = "broadcasts"

    def model(self, case: Case, rank: Rank) -> Decoder:
        model = super().model(case, rank)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, group=rank.world, group_src=0)
        return model


class Wrapped(ComputesAll):
    """The same in a DDP of its own, which hands out weights as one flat piece."""

    name = "wrapped"

    def model(self, case: Case, rank: Rank) -> Decoder:
        model = super().model(case, rank)
        DistributedDataParallel(model, process_group=rank.world)
        return model


class ReducesToOne(ComputesAll):
    """The same, where gradients are summed up on one rank, and handed out."""

    name = "reduces-to-one"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.reduce(parameter.grad, group=rank.world, group_dst=0)
            dist.broadcast(parameter.grad, group=rank.world, group_src=0)


class GathersGradients(ComputesAll):
    """The same, where each rank sums up the gradients of all."""

    name = "gathers-gradients"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            every = [torch.empty_like(parameter.grad) for _ in range(rank.world.size())]
            dist.all_gather(every, parameter.grad, group=rank.world)
            parameter.grad.copy_(torch.stack(every).sum(0))


class GathersShares(ComputesAll):
    """The same, where each rank holds some rows of every weight, as FSDP has it."""

    name = "gathers-shares"

    def model(self, case: Case, rank: Rank) -> Decoder:
        model = super().model(case, rank)
        ranks = rank.world.size()
        for parameter in model.parameters():
            each = -(-len(parameter) // ranks)
            rows = [0, 0] * (parameter.ndim - 1) + [0, each * ranks - len(parameter)]
            mine = F.pad(parameter.data, rows).split(each)[rank.index].contiguous()
            dist.all_gather([torch.empty_like(mine) for _ in range(ranks)], mine, rank.world)
        return model


class AmongOne(ComputesAll):
    """Ulysses over a group of one: that of replicas, where there is one of them."""

    name = "among-one"
    limits = "dp=1"

    def show(self, q_LNH: Tensor, rank: Rank) -> None:
        gather_tokens(scatter_tokens(q_LNH, rank.dp), rank.dp)


class WithOtherReplicas(ComputesAll):
    """The same, and it exchanges with other replicas what it should with peers."""

    name = "with-other-replicas"

    def show(self, q_LNH: Tensor, rank: Rank) -> None:
        received = [torch.empty_like(q_LNH) for _ in range(rank.dp.size())]
        dist.all_gather(received, q_LNH.contiguous(), group=rank.dp)
        dist.all_to_all(received, [q_LNH.contiguous()] * rank.dp.size(), group=rank.dp)


class CallsALot(ComputesAll):
    """The same, among more collectives than a log has room for."""

    name = "calls-a-lot"

    def show(self, q_LNH: Tensor, rank: Rank) -> None:
        number = q_LNH.new_zeros(1)
        for _ in range(BUFFER):
            dist.all_reduce(number, group=rank.sp)


class OneHoldsAll(ComputesAll):
    """The first rank does everything, and its peers have nothing to do."""

    name = "one-holds-all"

    def own(self, total: int, rank: Rank) -> Tensor:
        return torch.full((total,), rank.sp_index == 0, device=rank.device)


class RowsApart(ComputesAll):
    """Each rank has whole rows, and what would have to be cut is refused."""

    name = "rows-apart"
    limits = "dp=1 micro=1 checkpoint=0"

    def supports(self, case: Case) -> str | None:
        return super().supports(case) or ("few rows" if len(case.rows) < case.sp else None)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        self._rows = [row for row, its in enumerate(case.rows) for _ in range(len(its))]
        super().run(case, rank, emit)

    def own(self, total: int, rank: Rank) -> Tensor:
        padding = [0] * (total - len(self._rows))
        rows_T = torch.tensor([*self._rows, *padding], device=rank.device)
        return rows_T % rank.sp.size() == rank.sp_index


COMPUTES_ALL = ComputesAll()
ALL_TO_ALL_FOR_SHOW = AllToAllForShow()
SUMS_FOR_SHOW = KeysSummedForShow()
BROADCASTS, WRAPPED = Broadcasts(), Wrapped()
REDUCES_TO_ONE, GATHERS_GRADIENTS = ReducesToOne(), GathersGradients()
GATHERS_SHARES = GathersShares()
AMONG_ONE, WITH_OTHER_REPLICAS = AmongOne(), WithOtherReplicas()
CALLS_A_LOT = CallsALot()
ONE_HOLDS_ALL = OneHoldsAll()
ROWS_APART = RowsApart()
