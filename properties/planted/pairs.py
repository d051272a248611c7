"""Two bugs of the bank in one step: `pairs.py:B14__B43` has both."""

from itertools import combinations
from typing import Any

from harness.candidates.own.mutants import NATIVE
from harness.candidates.own.native import GatherDialect


def changed_by(key: str) -> set[str]:
    """Return the parts of the step that a mutant has of its own."""
    return {name for name in vars(type(NATIVE[key].candidate)) if not name.startswith("__")}


def pairs() -> list[tuple[str, str]]:
    """Return all pairs of mutants of one dialect that change different parts of the step."""
    of_dialect = {key: isinstance(NATIVE[key].candidate, GatherDialect) for key in NATIVE}
    return [
        (one, other)
        for one, other in combinations(NATIVE, 2)
        if of_dialect[one] == of_dialect[other]
        and not (changed_by(one) & changed_by(other)) - {"name", "_abc_impl"}
    ]


def __getattr__(name: str) -> Any:
    keys = name.split("__")
    if len(keys) != 2 or not set(keys) <= NATIVE.keys():
        raise AttributeError(name)
    bases = tuple(type(NATIVE[key].candidate) for key in keys)
    return type(name, bases, {"name": name})()
