"""Keeps tensors with wrong elements for the reader of a report; no verdict depends on them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.trace.trace import Tokens, Values

# How many bytes one comparison keeps, and how many a tensor counts in addition to its values.
MOST_BYTES = 2 << 20
OVERHEAD = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Differing:
    """The expected and the candidate's values of one tensor, or of rows of it that are wrong."""

    key: str
    # The shape of the whole tensor.
    shape: tuple[int, ...]
    expected: Values
    got: Values
    # The indices of these rows, or None if the tensor is whole.
    rows: Tokens | None = None
    # The token of each row; None if rows do not belong to tokens.
    tokens: Tokens | None = None


class Kept:
    """Collects differing tensors in execution order, as long as there is room."""

    def __init__(self) -> None:
        self.tensors: list[Differing] = []
        self._room = MOST_BYTES

    def add(
        self,
        key: str,
        expected: Values,
        got: Values,
        wrong: npt.NDArray[np.intp],
        tokens: Tokens | None,
    ) -> None:
        """Keep a copy of a tensor with wrong elements, or of as many of its rows as fit.

        It is a copy because a view would keep the whole trace in memory.
        """
        if not wrong.size:
            return
        rows = self._rows(expected, got, wrong)
        if rows is not None and not rows.size:
            return
        chosen = ... if rows is None else rows
        part = Differing(
            key=key,
            shape=expected.shape,
            expected=expected[chosen].copy(),
            got=got[chosen].copy(),
            rows=rows,
            tokens=None if tokens is None else tokens[chosen].copy(),
        )
        self.tensors.append(part)
        arrays = (part.expected, part.got, part.rows, part.tokens)
        self._room -= OVERHEAD + sum(array.nbytes for array in arrays if array is not None)

    def _rows(self, expected: Values, got: Values, wrong: npt.NDArray[np.intp]) -> Tokens | None:
        """Return None if the tensor fits; else the wrong rows, as many as fit."""
        count = len(expected) if expected.shape else 1
        # A row's own index and the number of its token take eight bytes each.
        bytes_per_row = (expected.nbytes + got.nbytes) // count + 16
        fitting = max(0, self._room - OVERHEAD) // bytes_per_row
        if count <= fitting:
            return None
        return np.unique(wrong // (expected.size // count))[:fitting].astype(np.int64)
