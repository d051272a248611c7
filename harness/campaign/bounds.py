"""The bounds of what was judged: beyond them nothing is known. Needs no torch."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from harness.against import is_of_recipe
from harness.case import Case

if TYPE_CHECKING:
    from harness.compare import Comparison


def _cutting_window(case: Case, window: int) -> list[int]:
    """Return the window if it takes tokens away from one that predicts a target; else nothing."""
    return [window] if any(row.mask.rfind("1") > window for row in case.rows) else []


SETTINGS = "settings"
# The values of a case that the bounds list, by the name that they have there.
LISTED: dict[str, Callable[[Case], Iterable[object]]] = {
    "rows": lambda case: [len(case.rows)],
    "tokens a row": lambda case: map(len, case.rows),
    "sp x dp": lambda case: [f"{case.sp}x{case.dp}"],
    "micro-batches": lambda case: [case.micro_batches],
    "heads": lambda case: [case.heads],
    "kv heads": lambda case: [case.kv_heads],
    "head dim": lambda case: [case.head_dim],
    "layers": lambda case: [case.layers],
    "vocab": lambda case: [case.vocab],
    "window": lambda case: ["none"] if case.window is None else _cutting_window(case, case.window),
    "steps of one batch": lambda case: [case.steps],
    "dtype": lambda case: [case.dtype],
    "loss": lambda case: [case.loss],
    "kernel": lambda case: [case.kernel],
    "model": lambda case: [case.model],
    "wrapper": lambda case: [case.wrapper],
    SETTINGS: lambda case: [f"{name}={value}" for name, value in case.settings],
}
# In place of what the case says, if the step has a recipe.
OF_RECIPE = {"loss": ["of the recipe"], "model": ["of the recipe"]}
# Switches of a case; the bounds name those that no case had on.
SWITCHES = ("compiled", "mixed", "checkpoint", "tied")


class Bounds(msgspec.Struct, forbid_unknown_fields=True):
    """Each value, by its name, of the cases that showed something of the candidate."""

    values: dict[str, list[str]] = {}

    def add(self, comparison: "Comparison") -> None:
        """Add the values of a case, unless every gradient in it is zero and so shows nothing."""
        if any(not gradient.zero for gradient in comparison.gradients):
            self.add_case(comparison.case, of_recipe=is_of_recipe(comparison.against))

    def add_case(self, case: Case, *, of_recipe: bool = False) -> None:
        values = {name: [*map(str, values(case))] for name, values in LISTED.items()}
        self._add_values(values | (OF_RECIPE if of_recipe else {}))
        self._add_values({name: [str(int(getattr(case, name)))] for name in SWITCHES})

    def _add_values(self, values: dict[str, list[str]]) -> None:
        for name, added in values.items():
            known = self.values.setdefault(name, [])
            new = {*added} - {*known}
            if new:
                self.values[name] = sorted([*known, *new], key=_sort_key)

    def __add__(self, other: "Bounds") -> "Bounds":
        both = Bounds()
        both._add_values(self.values)
        both._add_values(other.values)
        return both

    def text(self) -> str:
        """Return the bounds as one sentence, which is empty if there are none."""
        if not self.values:
            return ""
        listed = {name: ",".join(_as_ranges(self.values[name])) for name in LISTED}
        listed[SETTINGS] = " ".join(_by_name(self.values[SETTINGS]))
        parts = [f"{name} {values}" for name, values in listed.items() if values]
        off = [name for name in SWITCHES if self.values[name] == ["0"]]
        return f"bounds: {'; '.join(parts)}" + (f"; none {', '.join(off)}" if off else "")

    def is_sound(self) -> bool:
        """Whether the values have all names, or there are no values at all."""
        return {*self.values} == ({*LISTED, *SWITCHES} if self.values else set[str]())


def _as_ranges(values: list[str]) -> Iterator[str]:
    """Yield consecutive numbers as ranges such as `1-4`, and then the values that are words."""
    numbers = [int(value) for value in values if value.isdecimal()]
    for _, run in groupby(enumerate(numbers), lambda numbered: numbered[1] - numbered[0]):
        first, *others = (number for _, number in run)
        yield f"{first}-{others[-1]}" if others else str(first)
    yield from (value for value in values if not value.isdecimal())


def _by_name(settings: list[str]) -> Iterator[str]:
    """Yield each setting once, with all of its values."""
    pairs = (setting.split("=", 1) for setting in settings)
    for name, of_name in groupby(pairs, lambda pair: pair[0]):
        yield f"{name}={','.join(value for _, value in of_name)}"


def _sort_key(value: str) -> tuple[str, int, str]:
    """Sort numbers by their size, and settings by their names."""
    name, equals, _ = value.partition("=")
    return name if equals else "", len(value), value
