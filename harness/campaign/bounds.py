"""The bounds of what was judged: beyond them nothing is known. Needs no torch."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from harness.case import Case

if TYPE_CHECKING:
    from harness.compare import Comparison


def _cutting(case: Case, window: int) -> list[int]:
    """The window, if a token that predicts a target has more tokens before it."""
    return [window] if any(row.mask.rfind("1") > window for row in case.rows) else []


# What is told of a case, by what it is called.
TOLD: dict[str, Callable[[Case], Iterable[object]]] = {
    "rows": lambda case: [len(case.rows)],
    "tokens a row": lambda case: map(len, case.rows),
    "sp x dp": lambda case: [f"{case.sp}x{case.dp}"],
    "micro-batches": lambda case: [case.micro_batches],
    "heads": lambda case: [case.heads],
    "kv heads": lambda case: [case.kv_heads],
    "head dim": lambda case: [case.head_dim],
    "layers": lambda case: [case.layers],
    "vocab": lambda case: [case.vocab],
    "window": lambda case: ["none"] if case.window is None else _cutting(case, case.window),
    "steps of one batch": lambda case: [case.steps],
    "dtype": lambda case: [case.dtype],
    "loss": lambda case: [case.loss],
    "kernel": lambda case: [case.kernel],
    "model": lambda case: [case.model],
    "wrapper": lambda case: [case.wrapper],
}
# What a case has or has not, and is told where no case had it.
TURNED_ON = ("compiled", "mixed", "checkpoint", "tied")


class Bounds(msgspec.Struct, forbid_unknown_fields=True):
    """Every value that a case had in which something was learned, by what it is called."""

    values: dict[str, list[str]] = {}

    def add(self, comparison: "Comparison") -> None:
        """Where every gradient is zero, a case shows nothing of what it has."""
        if any(not gradient.zero for gradient in comparison.gradients):
            self.add_case(comparison.case)

    def add_case(self, case: Case) -> None:
        self._take({name: [*map(str, values(case))] for name, values in TOLD.items()})
        self._take({name: [str(int(getattr(case, name)))] for name in TURNED_ON})

    def _take(self, other: dict[str, list[str]]) -> None:
        for name, its in other.items():
            known = self.values.setdefault(name, [])
            new = {*its} - {*known}
            if new:
                self.values[name] = sorted([*known, *new], key=_in_order)

    def __add__(self, other: "Bounds") -> "Bounds":
        both = Bounds()
        both._take(self.values)
        both._take(other.values)
        return both

    def text(self) -> str:
        """In one sentence; nothing where nothing was judged."""
        if not self.values:
            return ""
        told = {name: ",".join(_in_runs(self.values[name])) for name in TOLD}
        parts = [f"{name} {values}" for name, values in told.items() if values]
        off = [name for name in TURNED_ON if self.values[name] == ["0"]]
        return f"bounds: {'; '.join(parts)}" + (f"; none {', '.join(off)}" if off else "")

    def is_sound(self) -> bool:
        """Whether it knows of everything, or of nothing at all."""
        return {*self.values} == ({*TOLD, *TURNED_ON} if self.values else set[str]())


def _in_runs(values: list[str]) -> Iterator[str]:
    """Numbers that follow each other as the first and the last of them."""
    numbers = [int(value) for value in values if value.isdecimal()]
    for _, run in groupby(enumerate(numbers), lambda numbered: numbered[1] - numbered[0]):
        first, *others = (number for _, number in run)
        yield f"{first}-{others[-1]}" if others else str(first)
    yield from (value for value in values if not value.isdecimal())


def _in_order(value: str) -> tuple[int, str]:
    """Numbers by their size."""
    return len(value), value
