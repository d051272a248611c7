"""What may be wrong with a forward pass: small changes of plain training, each with a name.

A hypothesis yields its variants of a stream's pass. One that changes nothing on a stream need not
be yielded there.
"""

from collections.abc import Callable

from harness.diagnosis.forward import Pass, Variants
from harness.diagnosis.hypotheses import heads, inputs, order, precision, rings, sight

HYPOTHESES: tuple[Callable[[Pass], Variants], ...] = (
    *inputs.ALL,
    *sight.ALL,
    *rings.ALL,
    *heads.ALL,
    *order.ALL,
    *precision.ALL,
)


def variants(plain: Pass) -> Variants:
    """Yield the variants of one stream."""
    for hypothesis in HYPOTHESES:
        yield from hypothesis(plain)
