"""The padded reference: the textbook training step on one device, on a padded batch.

Legend of tensor names: B rows, S columns (the longest row), D hidden, V vocabulary, C tokens whose
loss counts, T tokens of a block.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.case import LEARNING_RATE, Case
from harness.reference.attention import attention, fused, make_attend
from harness.reference.decoder import Decoder, Head, Tap, at_least_fp32
from harness.reference.threads import one_thread
from harness.reference.weights import TORCH_DTYPES, parameter_shapes
from harness.trace import Trace

# More logits than these are computed in blocks of this size, and again in backward.
LOGITS_AT_ONCE = 10 << 20


@one_thread
def reference(
    case: Case,
    dtype: torch.dtype,
    *,
    traced: bool = False,
    device: str = "cpu",
    further_columns: int = 0,
) -> Trace:
    """Return the trace of the last step of a case: loss, losses of tokens, and gradients.

    With `traced`, it has the inputs and the intermediate tensors as well. `further_columns` of
    padding change no number but for its rounding: kernels compute longer rows otherwise.
    """
    trace = Trace()
    tables = pad(case, further_columns)
    ids_BS, attended_BS, loss_mask_BS = (table_BS.to(device) for table_BS in tables)
    positions_BS = (attended_BS.long().cumsum(1) - 1).clamp(min=0)
    tokens = torch.arange(case.tokens, device=device)
    if traced:
        trace.add("ids", ids_BS[attended_BS], tokens)
        trace.add("positions", positions_BS[attended_BS], tokens)

    # Column t predicts column t + 1, so its loss counts if the *next* token is supervised.
    labels_BS = ids_BS[:, 1:]
    counts_BS = loss_mask_BS[:, 1:]
    token_numbers_BS = torch.full_like(ids_BS, -1)
    token_numbers_BS[attended_BS] = tokens
    predicting = token_numbers_BS[:, :-1][counts_BS]
    if traced:
        trace.add("labels", labels_BS[counts_BS], predicting)

    def tap(key: str, tensor_BS: Tensor) -> None:
        if traced:
            trace.add(key, tensor_BS[attended_BS], tokens)

    # The oracle computes attention by the formula. The baseline uses the kernel of training,
    # which has its own error: fused attention in fp32 strays 20 times as far as the formula.
    kernel = fused if case.kernel == "sdpa" and dtype != torch.float64 else attention
    attend = make_attend(kernel, attended_BS, case)
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

    weights = [parameter.data for parameter in model.parameters()]
    for _ in range(case.steps - 1):
        step(ignore)
        weights = [descend(*pair, case) for pair in zip(model.parameters(), weights, strict=True)]
    nll_BS, loss = step(tap)
    trace.add("nll", nll_BS[counts_BS], predicting)
    if traced:
        # The weight of a token's loss is its gradient. The last column predicts nothing.
        trace.add("weight", F.pad(gradient(nll_BS), (0, 1))[attended_BS], tokens)
    trace.add("loss", loss)
    # In the order in which backward computes them, which is the order of execution.
    parameters = dict(model.named_parameters())
    for name, _, _ in reversed(list(parameter_shapes(case))):
        trace.add(f"grad.{name}", gradient(parameters[name]))
    return trace


def pad(case: Case, further_columns: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return three BS tables: ids, which columns are real tokens, and which are targets."""
    width = max(len(row) for row in case.rows) + further_columns
    ids_BS = torch.full((len(case.rows), width), case.pad_id)
    attended_BS = torch.zeros(len(case.rows), width, dtype=torch.bool)
    loss_mask_BS = torch.zeros(len(case.rows), width, dtype=torch.bool)
    for r, row in enumerate(case.rows):
        start = width - len(row) if row.side == "left" else 0
        columns = slice(start, start + len(row))
        ids_BS[r, columns] = torch.tensor(case.ids_of(r))
        attended_BS[r, columns] = True
        loss_mask_BS[r, columns] = torch.tensor([bit == "1" for bit in row.mask])
        # No token predicts a row's first one, even if padding comes before it.
        loss_mask_BS[r, start] = False
    return ids_BS, attended_BS, loss_mask_BS


def token_losses(
    case: Case, x_BSD: Tensor, head: Head, labels_BS: Tensor, counts_BS: Tensor, tap: Tap
) -> Tensor:
    """Return the loss of every label from the last hidden state.

    In a large case, the losses that do not count are zero.
    """
    if x_BSD[..., 0].numel() * case.vocab > LOGITS_AT_ONCE:
        nll_C = losses_in_blocks(case, x_BSD[:, :-1][counts_BS], head, labels_BS[counts_BS])
        return nll_C.new_zeros(labels_BS.shape).masked_scatter(counts_BS, nll_C)
    logits_BSV = head(x_BSD)
    tap("logits", logits_BSV)
    return F.cross_entropy(
        at_least_fp32(logits_BSV[:, :-1]).flatten(0, 1), labels_BS.flatten(), reduction="none"
    ).view(labels_BS.shape)


def losses_in_blocks(case: Case, x_CD: Tensor, head: Head, labels_C: Tensor) -> Tensor:
    """Return the losses that count, computed in blocks so that their logits fit into memory."""

    def losses(x_TD: Tensor, labels_T: Tensor) -> Tensor:
        return F.cross_entropy(at_least_fp32(head(x_TD)), labels_T, reduction="none")

    size = max(1, LOGITS_AT_ONCE // case.vocab)
    blocks = zip(x_CD.split(size), labels_C.split(size), strict=True)
    return torch.cat([checkpoint(losses, *block, use_reentrant=False) for block in blocks])


def averaged_rows(case: Case) -> Iterator[list[int]]:
    """Yield the sets of rows of which the loss averages the token means."""
    every_row = list(range(len(case.rows)))
    if case.loss == "token-mean":
        yield every_row
    elif case.loss == "row-mean":
        yield from ([row] for row in every_row)
    else:
        for replica in range(case.dp):
            rows = torch.tensor(every_row[replica :: case.dp])
            yield from (part.tolist() for part in rows.tensor_split(case.micro_batches))


def group_mean(nll_BS: Tensor, counts_BS: Tensor) -> Tensor:
    """Return the mean of the losses that count; zero, with zero gradients, if there are none."""
    return (nll_BS * counts_BS).sum() / counts_BS.sum().clamp(min=1)


def descend(parameter: nn.Parameter, weight: Tensor, case: Case) -> Tensor:
    """Update a parameter by plain gradient descent, clear its gradient, return the new weight.

    The weight is rounded to what the case holds it in, also for the oracle: otherwise the next
    step of the oracle would start from other weights than that of a candidate.
    """
    weight = (weight - LEARNING_RATE * gradient(parameter)).to(
        TORCH_DTYPES["fp32" if case.mixed else case.dtype]
    )
    parameter.data = weight.to(TORCH_DTYPES[case.dtype]).to(parameter.dtype)
    parameter.grad = None
    return weight


def ignore(_key: str, _tensor: Tensor, /) -> None:
    """Do nothing: the tap of a step that is not judged."""


def gradient(tensor: Tensor) -> Tensor:
    """Return the gradient; zeros if the loss does not depend on the tensor."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
