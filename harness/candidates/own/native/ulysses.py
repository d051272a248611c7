"""Ulysses: one micro-batch of sequence-parallel training, to be read from top to bottom.

A batch is padded: it has ids, positions, and masks of which columns are tokens and which are
targets. Its tokens become one stream. Labels are shifted on the whole of it; then it is padded and
cut, and each of the sp ranks that share a sequence computes on its shard. Only attention looks
further: ranks exchange tokens for heads, attend to the whole stream with their part of the heads,
and exchange back; see `exchange` and `attention`. What each rank makes of its tokens' losses, and
what is then done with gradients, is the dialect's: either is right, and half of one with half of
the other is off by the number of ranks. What training has besides is in `training`.

Legend: B rows, S longest row, T tokens of the stream, P pad tokens at its end, L tokens on this
rank, D hidden, N heads, K kv heads, M and C of them on this rank, H head dim.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from harness.candidates.own.native.attention import Kernel, Segments
from harness.candidates.own.native.exchange import gather_tokens_together, scatter_tokens
from harness.candidates.own.native.kernels import KERNELS
from harness.candidates.own.native.rows import PAD_TOKEN, Batch
from harness.candidates.own.native.training import Training, gradient, summed
from harness.candidates.protocol import Emit, Rank
from harness.case import Case
from harness.reference.decoder import Decoder, at_least_fp32


@dataclass(frozen=True, slots=True)
class Stream:
    """The real tokens of a micro-batch, row after row."""

    ids_T: Tensor
    positions_T: Tensor
    labels_T: Tensor
    # The numbers by which the harness knows each token again.
    tokens_T: Tensor
    # Where each token came from in the flattened (B, S).
    indices_T: Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank computes on, and what attention must know about the whole stream."""

    ids_L: Tensor
    positions_L: Tensor
    labels_L: Tensor
    tokens_L: Tensor
    positions_TP: Tensor
    pad: int


class Ulysses(Training):
    """One micro-batch; each method is a part that scripts get wrong, and that mutants replace."""

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        """One micro-batch; leaves its gradients in the model -> loss, as this rank sees it."""
        stream = self.shifted(self.unpad(batch))
        mine = self.shard(case, stream, rank)
        nll_L = self.token_losses(model, case, mine, rank, emit)
        nll_L.retain_grad()
        emit("nll", nll_L, mine.tokens_L)
        loss = self.loss(case, batch, stream, nll_L, targets, rank)
        # More than one where DDP or FSDP averages gradients that the dialect wants summed.
        scale = self.scale(case, rank)
        self.backward(loss * scale)
        # How much each token's loss moves the gradients once they are reduced.
        emit("weight", gradient(nll_L) / scale / self.divisor(rank), mine.tokens_L)
        return loss.detach()

    def unpad(self, batch: Batch) -> Stream:
        """Drop the padding; row order and token order stay. Labels are the ids until shifted."""
        indices_T = batch.attended_BS.flatten().nonzero().squeeze(-1)
        ids_T = batch.ids_BS.flatten()[indices_T]
        positions_T = batch.positions_BS.flatten()[indices_T]
        tokens_T = batch.tokens_BS.flatten()[indices_T]
        return Stream(ids_T, positions_T, ids_T, tokens_T, indices_T)

    def shifted(self, stream: Stream) -> Stream:
        """Each token's label is the next token of the *whole* stream.

        The last token of a row gets the next row's first, the last of all gets the first of all;
        both are real ids and both carry no weight in the loss. Shifting after the stream is cut
        would instead lose or wrap one label per rank.
        """
        return replace(stream, labels_T=stream.labels_T.roll(-1))

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        """Pad the stream at its end and keep this rank's piece of everything."""
        pad = -len(stream.ids_T) % rank.sp.size()
        # Pad positions start over, so that the tail is one more row and no row attends to it.
        tail_P = torch.arange(pad, device=stream.positions_T.device)
        positions_TP = torch.cat((stream.positions_T, tail_P))
        return Shard(
            ids_L=cut(stream.ids_T, rank, case.pad_id),
            positions_L=cut(positions_TP, rank),
            labels_L=cut(stream.labels_T, rank, case.pad_id),
            tokens_L=cut(stream.tokens_T, rank, PAD_TOKEN),
            positions_TP=positions_TP,
            pad=pad,
        )

    def token_losses(
        self, model: Decoder, case: Case, mine: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        """The loss of each of this rank's tokens, padding included -> nll_L."""
        tap = partial(emit, tokens=mine.tokens_L)
        segments = self.segments(mine, case)
        tap("ids", mine.ids_L)
        tap("positions", mine.positions_L)
        tap("labels", mine.labels_L)
        nll_L: Tensor = model(
            mine.ids_L,
            mine.positions_L,
            lambda q_LNH, k_LKH, v_LKH: self.attend(q_LNH, k_LKH, v_LKH, segments, case, rank),
            tap,
            lambda x_LD, head: self.losses(x_LD, head, mine.labels_L, case, tap),
        )
        return nll_L

    def segments(self, mine: Shard, case: Case) -> Segments:
        """Which tokens of the whole stream see each other."""
        return Segments.of(mine.positions_TP, case.window)

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        """Exchange tokens for heads, attend to the whole stream, exchange back -> out_LNH."""
        k_LKH, v_LKH = self.repeat(k_LKH, rank), self.repeat(v_LKH, rank)
        q_TMH, k_TCH, v_TCH = self.gather_tokens((q_LNH, k_LKH, v_LKH), rank)
        out_TMH = self.kernel(case)(q_TMH, k_TCH, v_TCH, segments)
        return self.scatter_tokens(out_TMH, rank)

    def repeat(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        """Every rank needs a kv head: repeat each in place until there are sp of them."""
        return x_LKH.repeat_interleave(max(1, rank.sp.size() // x_LKH.shape[1]), 1)

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        """Sequence layout to head layout: all tokens, this rank's heads."""
        return gather_tokens_together(tensors, rank.sp)

    def kernel(self, case: Case) -> Kernel:
        """What attends, to the whole stream with this rank's heads."""
        return KERNELS[case.kernel]

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        """Head layout to sequence layout: this rank's tokens, all heads."""
        return scatter_tokens(out_TMH, rank.sp)

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        """How many loss terms the step has, over all micro-batches and replicas."""
        mine = torch.stack([supervised(batch).sum() for batch in micro_batches]).sum()
        return summed(mine, rank.dp)

    @abstractmethod
    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """What this rank calls backward on."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Turn this rank's gradients into what the optimizer sees."""
        sum_gradients(model, rank.world, divide_by=self.divisor(rank))

    def reported(self, total: Tensor, rank: Rank) -> Tensor:
        """The loss that a training log would show."""
        return summed(total, rank.world) / self.divisor(rank)


class GatherDialect(Ulysses):
    """The whole replica's loss on each rank, and the mean of gradients."""

    name = "native-gather"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """As in plain training, from the losses of all tokens."""
        nll_T = self.gather_losses(nll_L, rank)[: len(stream.ids_T)]
        # Back to the padded batch, zero where nothing was computed.
        nll_BS = nll_T.new_zeros(batch.ids_BS.numel()).index_put((stream.indices_T,), nll_T)
        counts_BS = self.counts(batch)
        terms_BS = nll_BS.view(batch.ids_BS.shape)[:, :-1] * counts_BS
        if case.loss == "token-mean":
            # The mean over replicas divides by dp what the global count already divided.
            return terms_BS.sum() / targets.clamp(min=1) * case.dp
        if case.loss == "micro-mean":
            return terms_BS.sum() / counts_BS.sum().clamp(min=1) / case.micro_batches
        row_means_B = terms_BS.sum(1) / counts_BS.sum(1).clamp(min=1)
        return row_means_B.sum() / (len(case.rows) / case.dp)

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        """The losses of the whole padded stream -> nll_TP."""
        nll_TP: Tensor = GatherTokens.apply(nll_L, rank.sp)  # type: ignore[no-untyped-call]
        return nll_TP

    def counts(self, batch: Batch) -> Tensor:
        """Which columns of the padded batch are loss terms."""
        return supervised(batch)

    def divisor(self, rank: Rank) -> int:
        """A mean over all ranks."""
        return rank.world.size()


class GatherTokens(torch.autograd.Function):
    """All peers' pieces, in order; backward keeps this rank's piece times the group size.

    Every peer computes the same loss from the gathered tensor, so its own piece of the gradient
    is already whole. The factor pays in advance for the mean over the group that follows.
    """

    @staticmethod
    def forward(ctx: Any, x_L: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        pieces = [torch.empty_like(x_L) for _ in range(group.size())]
        dist.all_gather(pieces, x_L.contiguous(), group=group)
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None]:
        sp = ctx.group.size()
        return grad_T.chunk(sp)[ctx.group.rank()] * sp, None


class LocalDialect(Ulysses):
    """On each rank the share of its tokens in the global loss, and the sum of gradients."""

    name = "native-local"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """What this rank's tokens add to the loss of all."""
        weights_T = self.weights(case, batch, stream, targets)
        return (nll_L * self.cut_weights(weights_T.to(nll_L.dtype), rank)).sum()

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        """The weight of every token of the stream in the global loss, zero where unsupervised."""
        counts_BS = supervised(batch)
        per_row_B = counts_BS.sum(1, keepdim=True)
        share = {
            "token-mean": targets,
            "micro-mean": per_row_B.sum() * case.dp * case.micro_batches,
            "row-mean": per_row_B * len(case.rows),
        }[case.loss]
        weights_BS = F.pad(counts_BS / share.clamp(min=1).double(), (0, 1))
        return weights_BS.flatten()[stream.indices_T]

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        """This rank's piece of them; padding weighs nothing."""
        return cut(weights_T, rank)

    def divisor(self, rank: Rank) -> int:  # noqa: ARG002 - nobody is averaged over
        """A sum over all ranks."""
        return 1


def supervised(batch: Batch) -> Tensor:
    """Columns 0 to S-2 whose next column is a real, supervised target of the same row."""
    return batch.loss_mask_BS[:, 1:] & batch.attended_BS[:, :-1]


def cut(values_T: Tensor, rank: Rank, fill: float = 0) -> Tensor:
    """This rank's consecutive piece of the padded stream."""
    return pad_to(values_T, rank.sp.size(), fill).chunk(rank.sp.size())[rank.sp_index]


def pad_to(values_T: Tensor, sp: int, fill: float) -> Tensor:
    """Append `fill` until sp divides the length."""
    return F.pad(values_T, (0, -len(values_T) % sp), value=fill)


def sum_gradients(model: nn.Module, group: ProcessGroup, *, divide_by: int) -> None:
    """Every gradient becomes its sum over the group, divided; one collective for all of them.

    Half precisions are summed in fp32: a sum over ranks must not depend on their number.
    """
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([at_least_fp32(grad).flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    sums = (flat / divide_by).split([grad.numel() for grad in grads])
    for grad, total in zip(grads, sums, strict=True):
        grad.copy_(total.view_as(grad))
