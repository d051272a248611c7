"""Ulysses: one micro-batch of sequence-parallel training, to be read from top to bottom.

1. A padded batch arrives: ids, positions, and two masks, of the columns that hold a token and of
   those that hold a target.
2. `unpad` joins its tokens, row after row, into one stream.
3. `shift_labels` makes the next token of the whole stream the label of each token.
4. `shard` pads the stream and cuts it into sp equal pieces. Each rank keeps one, its shard.
5. `token_losses` runs the model on the shard. Only attention needs other tokens: in `attend`, the
   ranks exchange tokens for heads, attend to the whole stream with a part of the heads each, and
   exchange back.
6. `loss` combines the losses of tokens, backward follows, and `reduce` combines the gradients of
   all ranks.

How step 6 is scaled is the dialect. In `GatherDialect` each rank computes the whole loss of its
replica, and gradients are averaged. In `LocalDialect` each rank computes the share of its own
tokens, and gradients are summed. Both are right; half of one with half of the other is off by the
number of ranks. Everything that training needs besides is in `training`.

Legend: B rows, S longest row, T tokens of the stream, P pad tokens at its end, L tokens on this
rank, D hidden, N heads, K kv heads, M heads on this rank, C kv heads on this rank, H head dim.
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
from harness.candidates.own.native.training import Training, gradient_or_zeros, sum_over
from harness.candidates.protocol import Emit, Rank
from harness.case import Case
from harness.reference.decoder import Decoder, at_least_fp32


@dataclass(frozen=True, slots=True)
class Stream:
    """The real tokens of a micro-batch, row after row."""

    ids_T: Tensor
    positions_T: Tensor
    labels_T: Tensor
    # The number of each token in the whole case, by which the harness recognises it.
    tokens_T: Tensor
    # The place of each token in the flattened (B, S) batch.
    indices_T: Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's piece of the padded stream, and what attention needs of the whole stream."""

    ids_L: Tensor
    positions_L: Tensor
    labels_L: Tensor
    tokens_L: Tensor
    # The positions of the whole padded stream, and how many of them are padding.
    positions_TP: Tensor
    pad: int


class Ulysses(Training):
    """One micro-batch. Each method is a part that scripts get wrong and that mutants replace."""

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        """Train on one micro-batch -> its loss on this rank; the model holds the gradients."""
        stream = self.shift_labels(self.unpad(batch))
        shard = self.shard(case, stream, rank)
        nll_L = self.token_losses(model, case, shard, rank, emit)
        nll_L.retain_grad()
        emit("nll", nll_L, shard.tokens_L)
        loss = self.loss(case, batch, stream, nll_L, targets, rank)
        # More than 1 where DDP or FSDP averages gradients that the dialect wants summed.
        scale = self.loss_scale(case, rank)
        self.backward(loss * scale)
        # How much the loss of each token weighs in the gradients once they are reduced.
        emit("weight", gradient_or_zeros(nll_L) / scale / self.divisor(rank), shard.tokens_L)
        return loss.detach()

    def unpad(self, batch: Batch) -> Stream:
        """Drop the padding and join the rows, in order. Labels are the ids until shifted."""
        indices_T = batch.attended_BS.flatten().nonzero().squeeze(-1)
        ids_T = batch.ids_BS.flatten()[indices_T]
        positions_T = batch.positions_BS.flatten()[indices_T]
        tokens_T = batch.tokens_BS.flatten()[indices_T]
        return Stream(ids_T, positions_T, ids_T, tokens_T, indices_T)

    def shift_labels(self, stream: Stream) -> Stream:
        """Make the next token of the *whole* stream the label of each token.

        The last token of a row gets the first of the next row, and the last token of all gets the
        first of all. Both labels are real ids, and neither has a weight in the loss. A shift after
        the cut would lose or wrap one label on each rank.
        """
        return replace(stream, labels_T=stream.labels_T.roll(-1))

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        """Pad the stream at its end, and keep this rank's piece of everything."""
        pad = -len(stream.ids_T) % rank.sp.size()
        # Positions of padding start at 0, so that it is one more row and no token attends to it.
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
        self, model: Decoder, case: Case, shard: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        """Run the model on the shard -> nll_L, the loss of each token, padding included."""
        tap = partial(emit, tokens=shard.tokens_L)
        segments = self.segments(shard, case)
        tap("ids", shard.ids_L)
        tap("positions", shard.positions_L)
        tap("labels", shard.labels_L)
        nll_L: Tensor = model(
            shard.ids_L,
            shard.positions_L,
            lambda q_LNH, k_LKH, v_LKH: self.attend(q_LNH, k_LKH, v_LKH, segments, case, rank),
            tap,
            lambda x_LD, head: self.losses_from_hidden(x_LD, head, shard.labels_L, case, tap),
        )
        return nll_L

    def segments(self, shard: Shard, case: Case) -> Segments:
        """Return which tokens of the whole stream see each other."""
        return Segments.from_positions(shard.positions_TP, case.window)

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
        k_LKH, v_LKH = self.repeat_kv_heads(k_LKH, rank), self.repeat_kv_heads(v_LKH, rank)
        q_TMH, k_TCH, v_TCH = self.gather_tokens((q_LNH, k_LKH, v_LKH), rank)
        out_TMH = self.kernel(case)(q_TMH, k_TCH, v_TCH, segments)
        return self.scatter_tokens(out_TMH, rank)

    def repeat_kv_heads(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        """Repeat each kv head in place until there is one for every rank."""
        return x_LKH.repeat_interleave(max(1, rank.sp.size() // x_LKH.shape[1]), 1)

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        """Go from sequence layout to head layout: all tokens, this rank's heads."""
        return gather_tokens_together(tensors, rank.sp)

    def kernel(self, case: Case) -> Kernel:
        """Return the function that attends to the whole stream with this rank's heads."""
        return KERNELS[case.kernel]

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        """Go from head layout to sequence layout: this rank's tokens, all heads."""
        return scatter_tokens(out_TMH, rank.sp)

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        """Count the loss terms of the step, over all micro-batches and replicas."""
        counts = [supervised_columns(batch).sum() for batch in micro_batches]
        return sum_over(torch.stack(counts).sum(), rank.dp)

    @abstractmethod
    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """Combine the losses of tokens into the number that this rank calls backward on."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Replace this rank's gradients by those that the optimizer sees."""
        sum_gradients(model, rank.world, divide_by=self.divisor(rank))

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        """Return the loss that a training log would show."""
        return sum_over(total, rank.world) / self.divisor(rank)


class GatherDialect(Ulysses):
    """Each rank computes the whole loss of its replica; gradients are averaged over all ranks."""

    name = "native-gather"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """Compute the loss as plain training does, from the losses of all tokens."""
        nll_T = self.gather_losses(nll_L, rank)[: len(stream.ids_T)]
        # Put each loss back into its column of the padded batch; padding has zeros.
        nll_BS = nll_T.new_zeros(batch.ids_BS.numel()).index_put((stream.indices_T,), nll_T)
        counts_BS = self.loss_columns(batch)
        terms_BS = nll_BS.view(batch.ids_BS.shape)[:, :-1] * counts_BS
        if case.loss == "token-mean":
            # `targets` counts all replicas already, and the mean over them divides by dp again.
            return terms_BS.sum() / targets.clamp(min=1) * case.dp
        if case.loss == "micro-mean":
            return terms_BS.sum() / counts_BS.sum().clamp(min=1) / case.micro_batches
        row_means_B = terms_BS.sum(1) / counts_BS.sum(1).clamp(min=1)
        return row_means_B.sum() / (len(case.rows) / case.dp)

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        """Gather the losses of the whole padded stream -> nll_TP."""
        nll_TP: Tensor = GatherTokens.apply(nll_L, rank.sp)  # type: ignore[no-untyped-call]
        return nll_TP

    def loss_columns(self, batch: Batch) -> Tensor:
        """Return which columns of the padded batch are loss terms."""
        return supervised_columns(batch)

    def divisor(self, rank: Rank) -> int:
        """Divide by the number of all ranks, for a mean."""
        return rank.world.size()


class GatherTokens(torch.autograd.Function):
    """Join the pieces of all peers; backward keeps this rank's piece, times the group size.

    Every peer computes the same loss from the joined tensor, so the gradient of this rank's piece
    is complete without any other rank. The factor undoes the mean over the group that follows.
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
    """Each rank computes its tokens' share of the global loss; gradients are summed."""

    name = "native-local"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """Sum what this rank's tokens add to the global loss."""
        weights_T = self.weights(case, batch, stream, targets)
        return (nll_L * self.cut_weights(weights_T.to(nll_L.dtype), rank)).sum()

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        """Return each token's weight in the global loss, zero if unsupervised -> weights_T."""
        counts_BS = supervised_columns(batch)
        per_row_B = counts_BS.sum(1, keepdim=True)
        divide_by = {
            "token-mean": targets,
            "micro-mean": per_row_B.sum() * case.dp * case.micro_batches,
            "row-mean": per_row_B * len(case.rows),
        }[case.loss]
        weights_BS = F.pad(counts_BS / divide_by.clamp(min=1).double(), (0, 1))
        return weights_BS.flatten()[stream.indices_T]

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        """Keep this rank's piece of the weights; padding has none."""
        return cut(weights_T, rank)

    def divisor(self, rank: Rank) -> int:  # noqa: ARG002 - a sum has the same divisor on any mesh
        """Divide by 1, for a sum."""
        return 1


def supervised_columns(batch: Batch) -> Tensor:
    """Return which of columns 0 to S-2 precede a real, supervised target of the same row."""
    return batch.loss_mask_BS[:, 1:] & batch.attended_BS[:, :-1]


def cut(values_T: Tensor, rank: Rank, fill: float = 0) -> Tensor:
    """Pad the stream and keep this rank's piece of it: consecutive, and as long as any other."""
    pieces = pad_to_multiple(values_T, rank.sp.size(), fill).chunk(rank.sp.size())
    return pieces[rank.sp_index]


def pad_to_multiple(values_T: Tensor, sp: int, fill: float) -> Tensor:
    """Append `fill` until sp divides the length."""
    return F.pad(values_T, (0, -len(values_T) % sp), value=fill)


def sum_gradients(model: nn.Module, group: ProcessGroup, *, divide_by: int) -> None:
    """Replace every gradient by its sum over the group, divided; use one collective for all.

    Half precisions are summed in fp32, so that the sum does not depend on the number of ranks.
    """
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([at_least_fp32(grad).flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    sums = (flat / divide_by).split([grad.numel() for grad in grads])
    for grad, total in zip(grads, sums, strict=True):
        grad.copy_(total.view_as(grad))
