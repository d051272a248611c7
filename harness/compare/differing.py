"""Tensors that are wrong somewhere, kept for a reader; nothing is ever judged from them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.trace.trace import Tokens, Values

# What one comparison keeps of them, and what each costs besides its values.
MOST_BYTES = 2 << 20
OVERHEAD = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Differing:
    """What was expected and what came, whole or the rows with wrong elements."""

    key: str
    # The whole tensor's.
    shape: tuple[int, ...]
    expected: Values
    got: Values
    # Which rows these are, where they are not all.
    rows: Tokens | None = None
    # The token of each row; None where rows belong to no token.
    tokens: Tokens | None = None


class Kept:
    """The first of them, as many as there is room for."""

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
        """Copy what fits, if anything is wrong; a view would keep the whole trace in memory."""
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
        """None for all; otherwise those with wrong elements, as many as fit."""
        count = len(expected) if expected.shape else 1
        # With its own number, and that of its token.
        each = (expected.nbytes + got.nbytes) // count + 16
        fitting = max(0, self._room - OVERHEAD) // each
        if count <= fitting:
            return None
        return np.unique(wrong // (expected.size // count))[:fitting].astype(np.int64)
