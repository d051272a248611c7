"""What suites take from a trace."""

import math
from collections.abc import Iterable

import numpy as np

from harness.trace import GRADIENT, Trace

# Of layer 0, and of no other: several suites compare the gradient of this one weight.
FIRST_Q = f"{GRADIENT}layers.0.q"


def gradients(trace: Trace, *parts: str) -> list[str]:
    """The keys of all gradients, or of those of the named parts of a layer."""
    return [
        key
        for key in trace
        if key.startswith(GRADIENT) and (not parts or key.rpartition(".")[2] in parts)
    ]


def attention_gradients(trace: Trace, *parts: str) -> list[str]:
    """The keys of the gradients of weights inside attention, in every layer."""
    return [key for key in gradients(trace, *parts) if key.startswith(f"{GRADIENT}layers.")]


def attention_outputs(trace: Trace) -> list[str]:
    """The keys of what attention puts out before its last projection, in every layer."""
    return [key for key in trace if key.endswith(".attn.out")]


def gradient_norm(trace: Trace) -> float:
    """The norm of all gradients together, as trainers log it before they clip."""
    return math.sqrt(sum(squares(trace, gradients(trace))))


def squares(trace: Trace, keys: Iterable[str]) -> list[float]:
    """The squared norm of each entry."""
    return [float(np.square(trace[key].values, dtype=np.float64).sum()) for key in keys]


def zeros(trace: Trace) -> int:
    """How many elements of all gradients are zero."""
    return sum(int((trace[key].values == 0).sum()) for key in gradients(trace))
