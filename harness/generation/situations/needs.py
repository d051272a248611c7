"""Whether a case has what a mutant needs to show."""

import re

from harness.case import Case
from harness.generation.situations import SITUATIONS, situations_of

_FIELD = re.compile(r"([a-z_]+)>(\d+)")


class UnknownNeed(ValueError):
    """It is neither a situation nor a field of a case above a number."""


def lacking(case: Case, needs: tuple[str, ...]) -> list[str]:
    """Which of the needs a case does not meet."""
    met = situations_of(case)
    return [need for need in needs if not (need in met or _holds(case, need))]


def _holds(case: Case, need: str) -> bool:
    if need in SITUATIONS:
        return False
    field = _FIELD.fullmatch(need)
    if not field or not hasattr(case, field[1]):
        raise UnknownNeed(f"needs={need}: name a situation, or a field of a case as in sp>1")
    return (getattr(case, field[1]) or 0) > int(field[2])
