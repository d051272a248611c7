"""A training step of the harness's own model around a library's attention.

Legend: ... the leading dims in which a library cuts its tokens, B rows, Q queries, K keys,
        N heads, C kv heads, H head dim, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.wiring import gradients
from harness.candidates.published.wiring.averages import requested
from harness.candidates.published.wiring.rows import IGNORED, PADDING, Padded, micro_batches
from harness.case import Case
from harness.reference.decoder import Attend, Decoder, at_least_fp32
from harness.reference.weights import TORCH_DTYPES


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's tokens of a micro-batch, in the shape that the library gave them."""

    ids: Tensor
    positions: Tensor
    # Labels are shifted: those of the next token, IGNORED where nothing is learnt.
    labels: Tensor
    # Global numbers; PADDING for padding.
    tokens: Tensor


# forward_backward(model, micro-batch, emit) -> this rank's share of the logged loss.
ForwardBackward = Callable[[Decoder, Padded, Emit], Tensor]
# layout(micro-batch) -> this rank's part of it, and the attention for that part.
Layout = Callable[[Padded], tuple[Part, Attend]]


def train(
    case: Case,
    rank: Rank,
    emit: Emit,
    forward_backward: ForwardBackward,
    *,
    mean: bool = False,
    logged: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Run every step of the case.

    Gradients and the logged loss are summed over all ranks, or averaged with `mean`; `logged`
    computes the logged loss in another way from this rank's sum.
    """
    model = Decoder(case, TORCH_DTYPES[case.dtype], rank.device)
    parameters = dict(model.named_parameters())
    for step_emit in gradients.steps(case, parameters, emit):
        losses = [forward_backward(model, batch, step_emit) for batch in micro_batches(case, rank)]
        gradients.reduce(parameters, rank.world, mean=mean)
        loss = torch.stack(losses).sum()
        if logged is None:
            loss = gradients.total(loss, rank.world) / (case.ranks if mean else 1)
        else:
            loss = logged(loss)
        step_emit("loss", loss)
        gradients.emit_gradients(parameters, step_emit)


def train_shares(case: Case, rank: Rank, emit: Emit, layout: Layout) -> None:
    """Run every step of the case; ranks sum their shares of the loss and of gradients."""

    def forward_backward(model: Decoder, batch: Padded, emit: Emit) -> Tensor:
        return backward_of_share(case, model, *layout(batch), emit)

    train(case, rank, emit, forward_backward)


def backward_of_share(
    case: Case, model: Decoder, part: Part, attend: Attend, emit: Emit
) -> Tensor:
    """Run forward and backward of this rank's share of the loss -> that share."""
    loss = share_of_loss(case, token_losses(model, part, attend, emit), part.tokens)
    loss.backward()
    return loss.detach()


def window_size(case: Case) -> tuple[int, int]:
    """Return how far a query sees to the left and to the right, as flash-attn counts it."""
    return (-1, -1) if case.window is None else (case.window - 1, 0)


def token_losses(model: Decoder, part: Part, attend: Attend, emit: Emit) -> Tensor:
    """Return one loss for each of this rank's tokens, zero where it is ignored."""
    tokens = part.tokens.flatten()

    def tap(key: str, tensor: Tensor) -> None:
        emit(key, tensor.flatten(0, part.tokens.dim() - 1), tokens)

    for key in ("ids", "positions", "labels"):
        tap(key, getattr(part, key))
    logits_V = at_least_fp32(model(part.ids, part.positions, attend, tap)).flatten(0, -2)
    nll = F.cross_entropy(logits_V, part.labels.flatten(), reduction="none", ignore_index=IGNORED)
    emit("nll", nll, tokens)
    return nll


def local_mean(nll: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of `F.cross_entropy`: NaN with zero gradients where there is no target."""
    count = (labels != IGNORED).sum()
    return torch.where(count > 0, nll.sum() / count.clamp(min=1), torch.nan)


def right_padded(batch: Padded, multiple: int) -> Part:
    """Return the rows in a table with all padding behind, as wide as a multiple."""
    order_BS = (1 - batch.attended_BS).argsort(dim=1, stable=True)
    fields = (batch.ids_BS, batch.positions_BS, batch.labels, batch.tokens_BS)
    ids_BS, positions_BS, labels_BS, tokens_BS = (x.gather(1, order_BS) for x in fields)
    more = -ids_BS.shape[1] % multiple
    return Part(
        F.pad(ids_BS, (0, more)),
        F.pad(positions_BS, (0, more)),
        F.pad(labels_BS[:, 1:], (0, more + 1), value=IGNORED),
        F.pad(tokens_BS, (0, more), value=PADDING),
    )


def share_of_loss(case: Case, nll: Tensor, tokens: Tensor) -> Tensor:
    """Return this rank's share of the case's loss; the library leaves the sum to its users."""
    weights = torch.zeros(case.tokens + 1, dtype=torch.float64, device=nll.device)
    sets = list(map(list, requested(case)))
    for rows in sets:
        terms = [
            case.offsets[row] + t
            for row in rows
            for t in range(len(case.rows[row]) - 1)
            if case.rows[row].mask[t + 1] == "1"
        ]
        weights[terms] = 1 / max(len(terms), 1)
    # The last weight is that of padding, whose number is -1.
    return (nll * (weights / len(sets))[tokens.flatten()].to(nll.dtype)).sum()


def in_fp64(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a ring's attention, which then computes in fp64 where tensors come in fp32.

    Its kernels take half precisions only, so it relies on `.float()` to make a copy. With fp32 its
    accumulators would be its buffers. The accumulators stay fp32 either way.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, *args: object, **kwargs: object) -> Tensor:
        wide = (x.double() if x.dtype == torch.float32 else x for x in (q, k, v))
        return attention(*wide, *args, **kwargs).to(q.dtype)

    return attend


def eager(q: Tensor, k: Tensor, v: Tensor, seen_BQK: Tensor) -> Tensor:
    """Return attention of queries BQNH to keys BKCH; a query that sees no key gets zeros."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores_BNQK = torch.einsum("bqnh,bknh->bnqk", at_least_fp32(q), at_least_fp32(k))
    hidden = ~seen_BQK[:, None]
    weights_BNQK = (scores_BNQK * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    weights_BNQK = weights_BNQK.masked_fill(~seen_BQK.any(-1)[:, None, :, None], 0).to(v.dtype)
    return torch.einsum("bnqk,bknh->bqnh", weights_BNQK, v)


def seen_in_rows(row_BS: Tensor, position_BS: Tensor, window: int | None) -> Tensor:
    """Return which token sees which, BQK: causal, in its own row; a negative row is padding."""
    back_BQK = position_BS[:, :, None] - position_BS[:, None, :]
    seen_BQK = (row_BS[:, :, None] == row_BS[:, None, :]) & (row_BS[:, :, None] >= 0)
    seen_BQK &= back_BQK >= 0
    return seen_BQK if window is None else seen_BQK & (back_BQK < window)
