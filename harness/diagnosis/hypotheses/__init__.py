"""What may be wrong with a forward pass: small changes of plain training, each with a name.

A hypothesis yields its variants of a stream's pass. One that changes nothing on a stream need not
be yielded there.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.diagnosis.forward import Pass
from harness.diagnosis.hypotheses import heads, inputs, order, precision, sight


class Variant(NamedTuple):
    """A name, what exactly is wrong, and a stream's pass with it."""

    name: str
    how: str
    changed: Pass


Hypothesis = Callable[[Pass], Iterator[tuple[str, str, Pass]]]
HYPOTHESES: tuple[Hypothesis, ...] = (
    *inputs.ALL,
    *sight.ALL,
    *heads.ALL,
    *order.ALL,
    *precision.ALL,
)


def variants(plain: Pass) -> Iterator[Variant]:
    """Of one stream."""
    for hypothesis in HYPOTHESES:
        for variant in hypothesis(plain):
            yield Variant(*variant)
