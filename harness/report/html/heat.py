"""Situations beside who was judged in them: how many cases did not pass."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.verdict import PASSED

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Square:
    """One situation of one candidate."""

    text: str
    says: str
    kind: str


def heat(
    found: Mapping[str, Mapping[str, Counts]], situations: Iterable[str]
) -> list[tuple[str, list[Square]]]:
    """A row for each situation, a square for each candidate."""
    return [
        (situation, [_square(of_one.get(situation, {})) for of_one in found.values()])
        for situation in situations
    ]


def _square(counts: Counts) -> Square:
    refused = counts.get("UNSUPPORTED", 0)
    judged = sum(counts.values()) - refused
    bad = judged - sum(counts.get(verdict, 0) for verdict in PASSED)
    says = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "never met"
    if not judged:
        return Square("refused" if refused else "never", says, "none")
    return Square(
        f"{bad} of {judged}" if bad else str(judged), says, "failed" if bad else "passed"
    )
