"""The reference: plain training on one device, on a padded batch, as the textbook has it.

Legend: B rows, S longest row, N heads, K kv heads, H head dim, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import LEARNING_RATE, Case
from harness.reference.decoder import Decoder, Tap, at_least_fp32
from harness.reference.threads import one_thread
from harness.reference.weights import parameter_shapes
from harness.trace import Trace


@one_thread
def reference(case: Case, dtype: torch.dtype, *, traced: bool = False) -> Trace:
    """Loss, per-token losses and gradients of one step; with `traced`, what came between."""
    trace = Trace()
    ids_BS, attended_BS, loss_mask_BS = pad(case)
    positions_BS = (attended_BS.long().cumsum(1) - 1).clamp(min=0)
    tokens = torch.arange(case.tokens)
    if traced:
        trace.add("ids", ids_BS[attended_BS], tokens)
        trace.add("positions", positions_BS[attended_BS], tokens)

    # Column t predicts column t + 1. A column counts where the *next* token is supervised.
    labels_BS = ids_BS[:, 1:]
    counts_BS = loss_mask_BS[:, 1:]
    token_numbers_BS = torch.full_like(ids_BS, -1)
    token_numbers_BS[attended_BS] = tokens
    supervised = token_numbers_BS[:, :-1][counts_BS]
    if traced:
        trace.add("labels", labels_BS[counts_BS], supervised)

    def tap(key: str, tensor_BS: Tensor) -> None:
        if traced:
            trace.add(key, tensor_BS[attended_BS], tokens)

    # The oracle spells attention out. The baseline has the kernel that training would use, whose
    # rounding error is its own: fused attention strays 20 times as far in fp32 as the formula.
    attend = fused if case.kernel == "sdpa" and dtype != torch.float64 else attention
    allowed_BSS = visible(attended_BS, case.window)
    model = Decoder(case, dtype)
    model.recompute = False

    def step(tap: Tap) -> tuple[Tensor, Tensor]:
        logits_BSV = model(
            ids_BS,
            positions_BS,
            lambda q, k, v: attend(q, k, v, allowed_BSS),
            tap,
        )
        nll_BS = F.cross_entropy(
            at_least_fp32(logits_BSV[:, :-1]).flatten(0, 1), labels_BS.flatten(), reduction="none"
        ).view(labels_BS.shape)
        means = [group_mean(nll_BS[rows], counts_BS[rows]) for rows in averaged_rows(case)]
        loss = torch.stack(means).mean()
        nll_BS.retain_grad()
        loss.backward()
        return nll_BS, loss

    for _ in range(case.steps - 1):
        step(ignore)
        descend(model)
    nll_BS, loss = step(tap)
    trace.add("nll", nll_BS[counts_BS], supervised)
    if traced:
        # How much each token's loss weighs; the last column predicts nothing.
        trace.add("weight", F.pad(gradient(nll_BS), (0, 1))[attended_BS], tokens)
    trace.add("loss", loss)
    # As backward reaches them: what is wrong first is then found first.
    parameters = dict(model.named_parameters())
    for name, _, _ in reversed(list(parameter_shapes(case))):
        trace.add(f"grad.{name}", gradient(parameters[name]))
    return trace


def pad(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, which columns are real, which columns are supervised targets; all BS."""
    width = max(len(row) for row in case.rows)
    ids_BS = torch.full((len(case.rows), width), case.pad_id)
    attended_BS = torch.zeros(len(case.rows), width, dtype=torch.bool)
    loss_mask_BS = torch.zeros(len(case.rows), width, dtype=torch.bool)
    for r, row in enumerate(case.rows):
        start = width - len(row) if row.side == "left" else 0
        columns = slice(start, start + len(row))
        ids_BS[r, columns] = torch.tensor(case.ids_of(r))
        attended_BS[r, columns] = True
        loss_mask_BS[r, columns] = torch.tensor([bit == "1" for bit in row.mask])
        # Nothing predicts a row's first token, also where padding stands before it.
        loss_mask_BS[r, start] = False
    return ids_BS, attended_BS, loss_mask_BS


def visible(attended_BS: Tensor, window: int | None) -> Tensor:
    """Which key (last dim) each query may see: earlier or itself, real, inside the window."""
    column_S = torch.arange(attended_BS.shape[1])
    distance_SS = column_S[:, None] - column_S[None, :]
    causal_SS = distance_SS >= 0
    if window is not None:
        causal_SS = causal_SS & (distance_SS < window)
    # Padding sees itself: a softmax over nothing would be NaN, and NaN times zero is NaN.
    itself_SS = distance_SS == 0
    return causal_SS & attended_BS[:, None, :] | itself_SS


def attention(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """Softmax attention, written out."""
    group = q_BSNH.shape[2] // k_BSKH.shape[2]
    q_BNSH = q_BSNH.transpose(1, 2)
    k_BNSH = k_BSKH.transpose(1, 2).repeat_interleave(group, 1)
    v_BNSH = v_BSKH.transpose(1, 2).repeat_interleave(group, 1)
    scores_BNSS = q_BNSH @ k_BNSH.mT * q_BSNH.shape[-1] ** -0.5
    scores_BNSS = scores_BNSS.masked_fill(~allowed_BSS[:, None], float("-inf"))
    weights_BNSS = at_least_fp32(scores_BNSS).softmax(-1).to(q_BSNH.dtype)
    return (weights_BNSS @ v_BNSH).transpose(1, 2)


def fused(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """The same by PyTorch's fused kernel."""
    q_BNSH, k_BKSH, v_BKSH = (x.transpose(1, 2) for x in (q_BSNH, k_BSKH, v_BSKH))
    grouped = q_BNSH.shape[1] != k_BKSH.shape[1]
    out_BNSH = F.scaled_dot_product_attention(
        q_BNSH, k_BKSH, v_BKSH, attn_mask=allowed_BSS[:, None], enable_gqa=grouped
    )
    return out_BNSH.transpose(1, 2)


def averaged_rows(case: Case) -> Iterator[list[int]]:
    """The sets of rows whose token means the loss averages."""
    everything = list(range(len(case.rows)))
    if case.loss == "token-mean":
        yield everything
    elif case.loss == "row-mean":
        yield from ([row] for row in everything)
    else:
        for replica in range(case.dp):
            mine = torch.tensor(everything[replica :: case.dp])
            yield from (part.tolist() for part in mine.tensor_split(case.micro_batches))


def group_mean(nll_BS: Tensor, counts_BS: Tensor) -> Tensor:
    """Masked sum over masked count; zero, with zero gradients, where nothing is supervised."""
    return (nll_BS * counts_BS).sum() / counts_BS.sum().clamp(min=1)


def descend(model: Decoder) -> None:
    """Plain gradient descent, and a clean slate for the next step."""
    for parameter in model.parameters():
        parameter.data -= LEARNING_RATE * gradient(parameter)
        parameter.grad = None


def ignore(_key: str, _tensor: Tensor, /) -> None:
    """A tap for a step that is not judged."""


def gradient(tensor: Tensor) -> Tensor:
    """The gradient, zeros where the loss never reached the tensor."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
