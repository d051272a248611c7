"""Small cases for relations, each of which takes a rank milliseconds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from harness.case import Case, LossContract
from harness.generation import cases
from harness.generation.strategies import LOSSES, rows

# Under these losses rows may be dealt and grouped in any way: none takes a mean of a micro-batch.
REGROUPABLE: tuple[LossContract, ...] = ("token-mean", "row-mean")


@st.composite
def batches(
    draw: st.DrawFn,
    /,
    *,
    per_replica: tuple[int, int] = (1, 3),
    lengths: tuple[int, int] = (1, 6),
    losses: Sequence[LossContract] = LOSSES,
    **bounds: Any,
) -> Case:
    """Draw any model and mesh of `cases`, with as many rows and tokens as a relation needs."""
    model = draw(
        cases(
            **{"max_ranks": 4, "max_rows": 1, "max_length": 1, "max_layers": 1, **bounds},
            losses=losses,
        )
    )
    count = draw(st.integers(*per_replica))
    row = rows(min_length=lengths[0], max_length=lengths[1])
    batch = draw(st.lists(row, min_size=count * model.dp, max_size=count * model.dp))
    return replace(model, rows=tuple(batch), ids=None, micro_batches=draw(st.integers(1, count)))


def one_step(case: Case) -> Case:
    """Reduce a case to its first step: in later ones the weights depend on every token."""
    return replace(case, steps=1)
