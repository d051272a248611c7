"""Columns of a batch beside ids and masks: numbers for each row, token or target.

A column is drawn from the seed and from the content of its row, or computed by another model. So a
row has the same numbers in every batch that it is in. In padding a column is zero. A case may
state plain numbers in place of drawn ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from harness.case import Case

By = Literal["row", "token", "target"]
# The field `columns` of a case -> the plain numbers that stand in for drawn ones.
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "signs": torch.sign,
    "one": torch.ones_like,
    "zero": torch.zeros_like,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """Numbers drawn between two bounds, or plain ones within them."""

    by: By
    least: float
    most: float

    def of_row(self, case: Case, row: int, name: str) -> Tensor:
        """Return one number, or one for each token of the row."""
        shares = torch.tensor(case.draw(row, name), dtype=torch.float64)
        values = self.least + (self.most - self.least) * (shares + 1) / 2
        if case.columns in PLAIN:
            # A loss need not take numbers outside the bounds.
            values = PLAIN[case.columns](values).clamp(self.least, self.most)
        return values[0] if self.by == "row" else values


# compute(model, batch) -> a table with a row for each row of the batch.
Compute = Callable[[Any, dict[str, Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Computed:
    """Numbers that another model computes from the batch before training begins.

    Its weights are those of the case, moved by `nudge`: an old policy, a reference or a teacher.
    Columns that are declared alike are computed by models that are moved in different directions.
    """

    compute: Compute
    nudge: float


Column = Drawn | Computed


def row(least: float = -1.0, most: float = 1.0) -> Drawn:
    """Declare one number for each row, such as an advantage or a reward -> [B]."""
    return Drawn("row", least, most)


def token(least: float = -1.0, most: float = 1.0) -> Drawn:
    """Declare one number for each token -> [B, S], zero where there is padding."""
    return Drawn("token", least, most)


def target(least: float = -1.0, most: float = 1.0) -> Drawn:
    """Declare one number for each target, in the target's own place -> [B, S], zero elsewhere."""
    return Drawn("target", least, most)


def computed(compute: Compute, *, nudge: float = 2.0**-6) -> Computed:
    """Declare what the model computes with its weights moved by `nudge` -> whatever it returns."""
    return Computed(compute, nudge)
