"""Steps in which no ranks share a sequence, and which still emit only right numbers.

A comparison of tensors passes them all. The harness must find from their traffic that they are
not sequence-parallel.
"""

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
    """Every rank computes on all tokens, and emits a part of them as its own."""

    name = "computes-all"

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(
            shard,
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
        self.send_for_show(q_LNH, rank)
        return self.kernel(case)(q_LNH, k_LKH, v_LKH, segments)

    def send_for_show(self, q_LNH: Tensor, rank: Rank) -> None:
        """Send something useless, to look sequence-parallel; here nothing."""

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return weights_T * self.owned(len(weights_T), rank)

    def owned(self, total: int, rank: Rank) -> Tensor:
        """Return which of all tokens this rank emits as its own."""
        places_T = torch.arange(total, device=rank.device)
        mine_T = cut(places_T, rank, -1)
        return torch.isin(places_T, mine_T)

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        def emit_owned(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if tokens is None:
                emit(key, tensor)
            else:
                own = self.owned(len(tokens), rank)
                emit(key, tensor[own], tokens[own])

        return super().forward_backward(model, case, batch, targets, rank, emit_owned)


class AllToAllForShow(ComputesAll):
    """As `ComputesAll`, and it exchanges zeros."""

    name = "all-to-all-for-show"

    def send_for_show(self, q_LNH: Tensor, rank: Rank) -> None:
        zeros = q_LNH.new_zeros(rank.sp.size())
        dist.all_to_all_single(torch.empty_like(zeros), zeros, group=rank.sp)


class KeysSummedForShow(ComputesAll):
    """As `ComputesAll`, and ranks sum a flat tensor that none needs, as if it were gradients."""

    name = "sums-for-show"

    def send_for_show(self, q_LNH: Tensor, rank: Rank) -> None:
        dist.all_reduce(q_LNH.detach().clone().flatten(), group=rank.sp)


class Broadcasts(ComputesAll):
    """As `ComputesAll`, and rank 0 broadcasts its weights first, as in a trainer."""

    name = "broadcasts"

    def model(self, case: Case, rank: Rank) -> Decoder:
        model = super().model(case, rank)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, group=rank.world, group_src=0)
        return model


class Wrapped(ComputesAll):
    """As `ComputesAll`, in a DDP of its own, which broadcasts weights as one flat tensor."""

    name = "wrapped"

    def model(self, case: Case, rank: Rank) -> Decoder:
        model = super().model(case, rank)
        DistributedDataParallel(model, process_group=rank.world)
        return model


class ReducesToOne(ComputesAll):
    """As `ComputesAll`, but one rank sums the gradients and broadcasts them."""

    name = "reduces-to-one"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.reduce(parameter.grad, group=rank.world, group_dst=0)
            dist.broadcast(parameter.grad, group=rank.world, group_src=0)


class GathersGradients(ComputesAll):
    """As `ComputesAll`, but each rank gathers the gradients of all and sums them."""

    name = "gathers-gradients"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            gathered = [torch.empty_like(parameter.grad) for _ in range(rank.world.size())]
            dist.all_gather(gathered, parameter.grad, group=rank.world)
            parameter.grad.copy_(torch.stack(gathered).sum(0))


class GathersShares(ComputesAll):
    """As `ComputesAll`, and ranks gather pieces of every weight, as FSDP does."""

    name = "gathers-shares"

    def model(self, case: Case, rank: Rank) -> Decoder:
        model = super().model(case, rank)
        ranks = rank.world.size()
        for parameter in model.parameters():
            size = -(-len(parameter) // ranks)
            padding = [0, 0] * (parameter.ndim - 1) + [0, size * ranks - len(parameter)]
            piece = F.pad(parameter.data, padding).split(size)[rank.index].contiguous()
            dist.all_gather([torch.empty_like(piece) for _ in range(ranks)], piece, rank.world)
        return model


class AmongOne(ComputesAll):
    """Ulysses over a group of one rank: the group of replicas, if there is one replica."""

    name = "among-one"
    limits = "dp=1"

    def send_for_show(self, q_LNH: Tensor, rank: Rank) -> None:
        gather_tokens(scatter_tokens(q_LNH, rank.dp), rank.dp)


class WithOtherReplicas(ComputesAll):
    """As `ComputesAll`, and it exchanges with other replicas instead of with peers."""

    name = "with-other-replicas"

    def send_for_show(self, q_LNH: Tensor, rank: Rank) -> None:
        received = [torch.empty_like(q_LNH) for _ in range(rank.dp.size())]
        dist.all_gather(received, q_LNH.contiguous(), group=rank.dp)
        dist.all_to_all(received, [q_LNH.contiguous()] * rank.dp.size(), group=rank.dp)


class CallsALot(ComputesAll):
    """As `ComputesAll`, among more collectives than the log of torch can hold."""

    name = "calls-a-lot"

    def send_for_show(self, q_LNH: Tensor, rank: Rank) -> None:
        number = q_LNH.new_zeros(1)
        for _ in range(BUFFER):
            dist.all_reduce(number, group=rank.sp)


class OneHoldsAll(ComputesAll):
    """The first rank emits everything, and its peers emit no token."""

    name = "one-holds-all"

    def owned(self, total: int, rank: Rank) -> Tensor:
        return torch.full((total,), rank.sp_index == 0, device=rank.device)


class RowsApart(ComputesAll):
    """Each rank emits whole rows, and refuses cases in which a row would have to be cut."""

    name = "rows-apart"
    limits = "dp=1 micro=1 checkpoint=0"

    def supports(self, case: Case) -> str | None:
        return super().supports(case) or ("few rows" if len(case.rows) < case.sp else None)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        self._rows = [index for index, row in enumerate(case.rows) for _ in range(len(row))]
        super().run(case, rank, emit)

    def owned(self, total: int, rank: Rank) -> Tensor:
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
