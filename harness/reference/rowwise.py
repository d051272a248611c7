"""The row-wise oracle: every row alone, unpadded. In fp64 it keeps the reference honest.

Written apart from the padded path on purpose: no batch, no mask tensors, losses weighted token
by token. What the two share is the model and the case.
"""

from collections import Counter
from fractions import Fraction

import torch
from torch import Tensor

from harness.case import LEARNING_RATE, Case
from harness.reference.decoder import Decoder, at_least_fp32
from harness.reference.threads import one_thread
from harness.reference.weights import TORCH_DTYPES, parameter_shapes
from harness.trace import Trace


@one_thread
def rowwise(case: Case, dtype: torch.dtype = torch.float64) -> Trace:
    """The required keys of a trace, computed one row and one token at a time."""
    model = Decoder(case, dtype)
    model.recompute = False
    # Weights live in the case's dtype, or in fp32 where it is mixed, whatever is computed in.
    used = TORCH_DTYPES[case.dtype]
    kept = torch.float32 if case.mixed else used
    weights = {parameter: parameter.detach() for parameter in model.parameters()}
    for _ in range(case.steps - 1):
        row_by_row(model, case)
        for parameter, weight in weights.items():
            if parameter.grad is not None:
                weights[parameter] = (weight - parameter.grad * LEARNING_RATE).to(kept)
                parameter.data = weights[parameter].to(used).to(dtype)
        model.zero_grad()
    return row_by_row(model, case)


def row_by_row(model: Decoder, case: Case) -> Trace:
    """One step's losses and gradients."""
    weights = token_weights(case)
    total = torch.zeros(())
    nll, tokens = [], []
    for r, row in enumerate(case.rows):
        ids = torch.tensor(case.ids_of(r))
        logits_TV = model(
            ids,
            torch.arange(len(row)),
            lambda q, k, v: attend_row(q, k, v, case.window),
            ignore,
        )
        logits_TV = at_least_fp32(logits_TV)
        # Rounded as a large sum is, and not as the small losses that may come of it.
        surprise_TV = logits_TV.logsumexp(-1, keepdim=True) - logits_TV
        for target in row.supervised():
            term = surprise_TV[target - 1, ids[target]]
            total = total + float(weights[r, target]) * term
            nll.append(term.detach())
            tokens.append(case.offsets[r] + target - 1)
    if total.requires_grad:
        total.backward()
    trace = Trace()
    trace.add(
        "nll",
        torch.stack(nll) if nll else torch.zeros(0),
        torch.tensor(tokens, dtype=torch.int64),
    )
    trace.add("loss", total)
    parameters = dict(model.named_parameters())
    for name, _, _ in reversed(list(parameter_shapes(case))):
        gradient = parameters[name].grad
        trace.add(
            f"grad.{name}", torch.zeros_like(parameters[name]) if gradient is None else gradient
        )
    return trace


def attend_row(q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, window: int | None) -> Tensor:
    """Each token in turn over the tokens it may see."""
    group = q_TNH.shape[1] // k_TKH.shape[1]
    out = []
    for t in range(q_TNH.shape[0]):
        first = 0 if window is None else max(0, t - window + 1)
        heads = []
        for n in range(q_TNH.shape[1]):
            scores_t = k_TKH[first : t + 1, n // group] @ q_TNH[t, n] / q_TNH.shape[2] ** 0.5
            weights_t = at_least_fp32(scores_t).softmax(0).to(q_TNH.dtype)
            heads.append(weights_t @ v_TKH[first : t + 1, n // group])
        out.append(torch.stack(heads))
    return torch.stack(out)


def ignore(_key: str, _tensor: Tensor, /) -> None:
    """A tap for a path that keeps no intermediate tensor."""


def token_weights(case: Case) -> dict[tuple[int, int], Fraction]:
    """The exact weight of each supervised token in the loss."""
    supervised = [(r, t) for r, row in enumerate(case.rows) for t in row.supervised()]
    # The loss averages the means of sets of tokens: the set of each row, and how many there are.
    set_of: dict[int, object]
    if case.loss == "token-mean":
        set_of, sets = dict.fromkeys(range(len(case.rows))), 1
    elif case.loss == "row-mean":
        set_of, sets = {row: row for row in range(len(case.rows))}, len(case.rows)
    else:
        set_of = {row: micro_batch_of(case, row) for row in range(len(case.rows))}
        sets = case.dp * case.micro_batches
    size = Counter(set_of[r] for r, _ in supervised)
    return {(r, t): Fraction(1, sets * size[set_of[r]]) for r, t in supervised}


def micro_batch_of(case: Case, row: int) -> tuple[int, int]:
    """(replica, micro-batch) of a row, by counting as `Case` describes."""
    replica, place = row % case.dp, row // case.dp
    left = len(case.rows) // case.dp
    for micro_batch in range(case.micro_batches):
        size = -(-left // (case.micro_batches - micro_batch))
        if place < size:
            return replica, micro_batch
        place, left = place - size, left - size
    raise AssertionError("every row belongs to a micro-batch")
