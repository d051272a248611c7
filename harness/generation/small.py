"""Every small batch, once each, from the smallest to the largest.

It varies rows, masks, sides, micro-batches, sp, dp, a window, kv heads below, at and above sp, and
what the loss averages over. Some of it can make no difference, and is not varied:

1. The bit of a row's first token never counts. It is set: code that counts it goes wrong, and
   other code cannot tell.
2. A row as long as the longest is not padded, so it has no side.
3. In a row of 3 a window of 2 tokens hides nothing from a token that predicts another. So only a
   case with a longer row comes with such a window too.

The ids of all tokens differ, so that no token can stand for another. The last is that of padding,
and it is a label in half of the cases. There are four times as many heads as ranks, so that a rank
may have several kv heads, each for several heads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from harness.case import Case, Dtype, InvalidCase, Kernel, LossContract, Row, Side, Wrapper
from harness.case.shapes import SHAPES
from harness.case.stated import arguments, is_within, read_stated

WINDOW, HEAD_DIM = 2, 4
Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Small:
    """All batches of up to so many tokens, with these values of their other fields."""

    tokens: int
    sps: Sequence[int]
    dps: Sequence[int]
    max_ranks: int
    losses: Sequence[LossContract]
    dtypes: Sequence[Dtype] = ("fp64",)
    kernels: Sequence[Kernel] = ("eager",)
    wrappers: Sequence[Wrapper] = ("none",)
    stated: Sequence[str] = ()
    seed: int = 0

    def __len__(self) -> int:
        return sum(1 for _ in self._fields())

    def cases(self, start: int, stop: int) -> Iterator[Case]:
        """Yield the cases from one place in the order up to another."""
        return (self._case(fields) for fields in islice(self._fields(), start, stop))

    def _fields(self) -> Iterator[Fields]:
        """Yield the fields of each case: first by tokens, then by mesh, so that ranks stay."""
        read = dict(map(read_stated, self.stated))
        stated = {name: values for name, values in read.items() if name not in SHAPES}
        shapes = {name: values for name, values in read.items() if name in SHAPES}
        for tokens, sp, dp in product(range(1, self.tokens + 1), self.sps, self.dps):
            if sp * dp > self.max_ranks:
                continue
            for rows in batches(tokens):
                varied = _varied(rows, sp, dp) | {
                    "loss": self.losses,
                    "dtype": self.dtypes,
                    "kernel": self.kernels,
                    "wrapper": self.wrappers,
                }
                varied |= stated
                for values in product(*varied.values()):
                    fields = {
                        "rows": rows,
                        "sp": sp,
                        "dp": dp,
                        **dict(zip(varied, values, strict=True)),
                    }
                    # Only a stated value can be one that the others do not allow.
                    if not read or self._is_valid(fields, shapes):
                        yield fields

    def _is_valid(self, fields: Fields, shapes: Mapping[str, Sequence[str]]) -> bool:
        try:
            case = self._case(fields)
        except InvalidCase:
            return False
        return all(is_within(case, name, values) for name, values in shapes.items())

    def _case(self, fields: Fields) -> Case:
        sp, rows, first = fields["sp"], fields["rows"], 1
        ids: list[tuple[int, ...]] = []
        for row in rows:
            ids.append(tuple(range(first, first + len(row))))
            first += len(row)
        ids[-1] = (*ids[-1][:-1], 0)
        usual = {"heads": 4 * sp, "head_dim": HEAD_DIM, "vocab": self.tokens + 1}
        return Case(**(usual | {"ids": tuple(ids), "seed": self.seed} | arguments(fields)))


def batches(tokens: int) -> Iterator[tuple[Row, ...]]:
    """Yield all batches of so many tokens: their rows in each order, with each mask and side."""
    for lengths in _compositions(tokens):
        longest = max(lengths)
        yield from product(*(tuple(_rows(length, length < longest)) for length in lengths))


def _compositions(tokens: int) -> Iterator[tuple[int, ...]]:
    """Yield all tuples of lengths that add up to so many tokens, those of few rows first."""
    if tokens == 0:
        yield ()
    for first in range(tokens, 0, -1):
        yield from ((first, *others) for others in _compositions(tokens - first))


def _rows(length: int, is_padded: bool) -> Iterator[Row]:
    sides: tuple[Side, ...] = ("right", "left") if is_padded else ("right",)
    for bits in product("10", repeat=length - 1):
        yield from (Row("1" + "".join(bits), side) for side in sides)


def _varied(rows: Sequence[Row], sp: int, dp: int) -> dict[str, Sequence[Any]]:
    """Return the values of the fields that depend on the rows and the mesh."""
    return {
        "micro_batches": range(1, len(rows) // dp + 1) if len(rows) % dp == 0 else (),
        "window": (None, WINDOW) if max(map(len, rows)) > WINDOW + 1 else (None,),
        "kv_heads": [*(kv for kv in range(1, sp + 1) if sp % kv == 0), 2 * sp],
    }
