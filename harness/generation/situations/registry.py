"""The registry of situations by name."""

from collections.abc import Callable

from harness.case import Case
from harness.plan import Plan, plan

Predicate = Callable[[Case, Plan], bool]
SITUATIONS: dict[str, Predicate] = {}


def situation(name: str) -> Callable[[Predicate], Predicate]:
    """Register a predicate under a name that reads well in a table."""

    def register(predicate: Predicate) -> Predicate:
        SITUATIONS[name] = predicate
        return predicate

    return register


def situations_of(case: Case) -> list[str]:
    """Return the names of all situations that a case is in."""
    layout = plan(case)
    return [name for name, predicate in SITUATIONS.items() if predicate(case, layout)]
