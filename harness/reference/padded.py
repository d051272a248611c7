"""The reference: plain training on one device, on a padded batch, as the textbook has it.

Legend: B rows, S longest row, D hidden, V vocabulary, C tokens that count, T tokens of a block.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.case import LEARNING_RATE, Case
from harness.reference.attention import attending, attention, fused
from harness.reference.decoder import Decoder, Head, Tap, at_least_fp32
from harness.reference.threads import one_thread
from harness.reference.weights import TORCH_DTYPES, parameter_shapes
from harness.trace import Trace

# Where there are more, they are computed so many at a time, and once more in backward.
LOGITS_AT_ONCE = 10 << 20


@one_thread
def reference(
    case: Case, dtype: torch.dtype, *, traced: bool = False, device: str = "cpu"
) -> Trace:
    """Loss, per-token losses and gradients of one step; with `traced`, what came between."""
    trace = Trace()
    ids_BS, attended_BS, loss_mask_BS = (table_BS.to(device) for table_BS in pad(case))
    positions_BS = (attended_BS.long().cumsum(1) - 1).clamp(min=0)
    tokens = torch.arange(case.tokens, device=device)
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
    kernel = fused if case.kernel == "sdpa" and dtype != torch.float64 else attention
    attend = attending(kernel, attended_BS, case)
    model = Decoder(case, dtype, device)
    model.recompute = False

    def step(tap: Tap) -> tuple[Tensor, Tensor]:
        nll_BS = model(
            ids_BS,
            positions_BS,
            attend,
            tap,
            lambda x, head: token_losses(case, x, head, labels_BS, counts_BS, tap),
        )
        means = [group_mean(nll_BS[rows], counts_BS[rows]) for rows in averaged_rows(case)]
        loss = torch.stack(means).mean()
        nll_BS.retain_grad()
        loss.backward()
        return nll_BS, loss

    held = [parameter.data for parameter in model.parameters()]
    for _ in range(case.steps - 1):
        step(ignore)
        held = [descend(*pair, case) for pair in zip(model.parameters(), held, strict=True)]
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


def token_losses(
    case: Case, x_BSD: Tensor, head: Head, labels_BS: Tensor, counts_BS: Tensor, tap: Tap
) -> Tensor:
    """The loss of every label from the last hidden state."""
    if x_BSD[..., 0].numel() * case.vocab > LOGITS_AT_ONCE:
        nll_C = losses_in_blocks(case, x_BSD[:, :-1][counts_BS], head, labels_BS[counts_BS])
        return nll_C.new_zeros(labels_BS.shape).masked_scatter(counts_BS, nll_C)
    logits_BSV = head(x_BSD)
    tap("logits", logits_BSV)
    return F.cross_entropy(
        at_least_fp32(logits_BSV[:, :-1]).flatten(0, 1), labels_BS.flatten(), reduction="none"
    ).view(labels_BS.shape)


def losses_in_blocks(case: Case, x_CD: Tensor, head: Head, labels_C: Tensor) -> Tensor:
    """Only the losses that count, as many at a time as there is room for logits."""

    def losses(x_TD: Tensor, labels_T: Tensor) -> Tensor:
        return F.cross_entropy(at_least_fp32(head(x_TD)), labels_T, reduction="none")

    size = max(1, LOGITS_AT_ONCE // case.vocab)
    blocks = zip(x_CD.split(size), labels_C.split(size), strict=True)
    return torch.cat([checkpoint(losses, *block, use_reentrant=False) for block in blocks])


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


def descend(parameter: nn.Parameter, held: Tensor, case: Case) -> Tensor:
    """Plain gradient descent, and a clean slate for the next step -> what is then held.

    The oracle too forgets what the case's dtype cannot hold: else its second step would not begin
    where everybody's begins.
    """
    held = (held - LEARNING_RATE * gradient(parameter)).to(
        TORCH_DTYPES["fp32" if case.mixed else case.dtype]
    )
    parameter.data = held.to(TORCH_DTYPES[case.dtype]).to(parameter.dtype)
    parameter.grad = None
    return held


def ignore(_key: str, _tensor: Tensor, /) -> None:
    """A tap for a step that is not judged."""


def gradient(tensor: Tensor) -> Tensor:
    """The gradient, zeros where the loss never reached the tensor."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
