"""The row-wise oracle: plain training with every row alone and unpadded.

In fp64 it checks the padded reference. It shares only the case and the model with it, on purpose:
it has no batch and no mask tensors, and it weights losses token by token.

Legend of tensor names: T tokens of a row, V vocabulary, N heads, K kv heads, H head dim, t the
tokens that one query may see.
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
    """Return the required keys of the last step, computed one row and one token at a time."""
    model = Decoder(case, dtype)
    model.recompute = False
    # Weights are held in the case's dtype, or in fp32 if it is mixed, whatever `dtype` is.
    computed_in = TORCH_DTYPES[case.dtype]
    held_in = torch.float32 if case.mixed else computed_in
    weights = {parameter: parameter.detach() for parameter in model.parameters()}
    for _ in range(case.steps - 1):
        step(model, case)
        for parameter, weight in weights.items():
            if parameter.grad is not None:
                weights[parameter] = (weight - parameter.grad * LEARNING_RATE).to(held_in)
                parameter.data = weights[parameter].to(computed_in).to(dtype)
        model.zero_grad()
    return step(model, case)


def step(model: Decoder, case: Case) -> Trace:
    """Run forward and backward, and return the losses and gradients."""
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
        # Written as a difference, so that a small loss has the rounding of the large terms.
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
    """Return attention, computed for each token in turn over the tokens that it may see."""
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
    """Do nothing: a tap, because this path keeps no intermediate tensor."""


def token_weights(case: Case) -> dict[tuple[int, int], Fraction]:
    """Return the exact weight of each target in the loss, by row and position."""
    targets = [(r, t) for r, row in enumerate(case.rows) for t in row.supervised()]
    # The loss averages the means of sets of tokens. Here: the set of each row, and their number.
    set_by_row: dict[int, object]
    if case.loss == "token-mean":
        set_by_row, sets = dict.fromkeys(range(len(case.rows))), 1
    elif case.loss == "row-mean":
        set_by_row, sets = {row: row for row in range(len(case.rows))}, len(case.rows)
    else:
        set_by_row = {row: micro_batch_of(case, row) for row in range(len(case.rows))}
        sets = case.dp * case.micro_batches
    size = Counter(set_by_row[r] for r, _ in targets)
    return {(r, t): Fraction(1, sets * size[set_by_row[r]]) for r, t in targets}


def micro_batch_of(case: Case, row: int) -> tuple[int, int]:
    """Return the (replica, micro-batch) of a row, counted as `Case` describes."""
    replica, place = row % case.dp, row // case.dp
    remaining = len(case.rows) // case.dp
    for micro_batch in range(case.micro_batches):
        size = -(-remaining // (case.micro_batches - micro_batch))
        if place < size:
            return replica, micro_batch
        place, remaining = place - size, remaining - size
    raise AssertionError("every row belongs to a micro-batch")
