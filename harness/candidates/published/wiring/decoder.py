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
from harness.candidates.published.wiring.averages import asked
from harness.candidates.published.wiring.rows import PADDING, Padded, micro_batches
from harness.case import Case
from harness.reference.decoder import Attend, Decoder, at_least_fp32
from harness.reference.weights import TORCH_DTYPES

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of a micro-batch, in the shape that the library gave it."""

    ids: Tensor
    positions: Tensor
    # Labels are shifted: those of the next token, IGNORED where nothing is to be learnt.
    labels: Tensor
    # Global numbers; PADDING for padding.
    tokens: Tensor


# forward_backward(model, micro-batch, emit) -> this rank's share of what is logged.
ForwardBackward = Callable[[Decoder, Padded, Emit], Tensor]
# layout(micro-batch) -> this rank's part of it, and the attention that belongs to it.
Layout = Callable[[Padded], tuple[Part, Attend]]


def train(
    case: Case,
    rank: Rank,
    emit: Emit,
    forward_backward: ForwardBackward,
    *,
    mean: bool,
    logged: Callable[[Tensor], Tensor],
) -> None:
    """Every step of the case; gradients are summed over all ranks, or averaged."""
    model = Decoder(case, TORCH_DTYPES[case.dtype], rank.device)
    parameters = dict(model.named_parameters())
    for say in gradients.steps(case, parameters, emit):
        shares = [forward_backward(model, batch, say) for batch in micro_batches(case, rank)]
        gradients.reduce(parameters, rank.world, mean=mean)
        say("loss", logged(torch.stack(shares).sum()))
        gradients.emit_gradients(parameters, say)


def train_shares(case: Case, rank: Rank, emit: Emit, layout: Layout) -> None:
    """Every step of the case; shares of the loss and of gradients are summed over all ranks."""

    def forward_backward(model: Decoder, batch: Padded, say: Emit) -> Tensor:
        part, attend = layout(batch)
        loss = weighted(case, token_losses(model, part, attend, say), part.tokens)
        loss.backward()
        return loss.detach()

    train(
        case,
        rank,
        emit,
        forward_backward,
        mean=False,
        logged=lambda share: gradients.total(share, rank.world),
    )


def window_size(case: Case) -> tuple[int, int]:
    """How far a query sees to the left and to the right, as flash-attn has it."""
    return (-1, -1) if case.window is None else (case.window - 1, 0)


def token_losses(model: Decoder, part: Part, attend: Attend, emit: Emit) -> Tensor:
    """One loss for each of this rank's tokens, zero where it is ignored."""
    tokens = part.tokens.flatten()

    def tell(key: str, tensor: Tensor) -> None:
        emit(key, tensor.flatten(0, part.tokens.dim() - 1), tokens)

    for key in ("ids", "positions", "labels"):
        tell(key, getattr(part, key))
    logits_V = at_least_fp32(model(part.ids, part.positions, attend, tell)).flatten(0, -2)
    nll = F.cross_entropy(logits_V, part.labels.flatten(), reduction="none", ignore_index=IGNORED)
    emit("nll", nll, tokens)
    return nll


def local_mean(nll: Tensor, labels: Tensor) -> Tensor:
    """The mean as `F.cross_entropy` has it: NaN, with zero gradients, where there is no target."""
    count = (labels != IGNORED).sum()
    return torch.where(count > 0, nll.sum() / count.clamp(min=1), torch.nan)


def right_padded(batch: Padded, multiple: int) -> Part:
    """The rows in a table whose width is a multiple, all padding behind; labels are shifted."""
    order_BS = (1 - batch.attended_BS).argsort(dim=1, stable=True)
    fields = (batch.ids_BS, batch.positions_BS, batch.targets_BS, batch.tokens_BS)
    ids_BS, positions_BS, targets_BS, tokens_BS = (x.gather(1, order_BS) for x in fields)
    labels_BS = ids_BS.masked_fill(~targets_BS, IGNORED)[:, 1:]
    more = -ids_BS.shape[1] % multiple
    return Part(
        F.pad(ids_BS, (0, more)),
        F.pad(positions_BS, (0, more)),
        F.pad(labels_BS, (0, more + 1), value=IGNORED),
        F.pad(tokens_BS, (0, more), value=PADDING),
    )


def weighted(case: Case, nll: Tensor, tokens: Tensor) -> Tensor:
    """This rank's share of the loss, where a library leaves it to its users to add up."""
    weights = torch.zeros(case.tokens + 1, dtype=torch.float64, device=nll.device)
    sets = list(map(list, asked(case)))
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


def eager(q: Tensor, k: Tensor, v: Tensor, seen_BQK: Tensor) -> Tensor:
    """Attention of queries BQNH to keys BKCH; a query that sees no key gets zeros."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores_BNQK = torch.einsum("bqnh,bknh->bnqk", at_least_fp32(q), at_least_fp32(k))
    hidden = ~seen_BQK[:, None]
    weights_BNQK = (scores_BNQK * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    weights_BNQK = weights_BNQK.masked_fill(~seen_BQK.any(-1)[:, None, :, None], 0).to(v.dtype)
    return torch.einsum("bnqk,bknh->bqnh", weights_BNQK, v)


def seen_in_rows(row_BS: Tensor, place_BS: Tensor, window: int | None) -> Tensor:
    """Which token sees which, BQK: causal, in rows by number; in a negative row none is seen."""
    back_BQK = place_BS[:, :, None] - place_BS[:, None, :]
    seen_BQK = (row_BS[:, :, None] == row_BS[:, None, :]) & (row_BS[:, :, None] >= 0)
    seen_BQK &= back_BQK >= 0
    return seen_BQK if window is None else seen_BQK & (back_BQK < window)
