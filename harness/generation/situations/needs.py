"""Check whether a case has what a mutant or a listed bug needs in order to show."""

import re

from harness.case import Case
from harness.generation.situations import SITUATIONS, situations_of

_FIELD = re.compile(r"([a-z_]+)>(\d+)")


class UnknownNeed(ValueError):
    """A need is neither a situation nor a field of a case above a number."""


def lacking(case: Case, needs: tuple[str, ...]) -> list[str]:
    """Return the needs that a case does not meet; raise UnknownNeed if one is misspelt."""
    met = situations_of(case)
    return [need for need in needs if not (need in met or _is_field_above(case, need))]


def _is_field_above(case: Case, need: str) -> bool:
    """Return whether a field is above a number, as in `sp>1`; False for a known situation."""
    if need in SITUATIONS:
        return False
    field = _FIELD.fullmatch(need)
    if not field or not hasattr(case, field[1]):
        raise UnknownNeed(f"needs={need}: name a situation, or a field of a case as in sp>1")
    return (getattr(case, field[1]) or 0) > int(field[2])
