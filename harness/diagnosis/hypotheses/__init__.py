"""Hypotheses: small changes of a plain forward pass, each with a name and a description.

A hypothesis is a function that yields variants of one stream's pass. It may leave out a variant
that changes nothing on that stream. The order of variants matters: of several that predict all
losses equally well, the first one is the name.
"""

from collections.abc import Callable

from harness.diagnosis.forward import Pass, Variants
from harness.diagnosis.hypotheses import heads, inputs, order, precision, rings, visibility

HYPOTHESES: tuple[Callable[[Pass], Variants], ...] = (
    *inputs.ALL,
    *visibility.ALL,
    *rings.ALL,
    *heads.ALL,
    *order.ALL,
    *precision.ALL,
)


def variants(plain: Pass) -> Variants:
    """Yield the variants of one stream."""
    for hypothesis in HYPOTHESES:
        yield from hypothesis(plain)
