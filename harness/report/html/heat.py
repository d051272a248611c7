"""A table of situations by candidates: how many cases were judged, and how many did not pass."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.verdict import PASSED

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Square:
    """One situation of one candidate."""

    text: str
    tooltip: str
    # The class in the style sheet.
    kind: str


def heat(
    verdicts: Mapping[str, Mapping[str, Counts]], situations: Iterable[str]
) -> list[tuple[str, list[Square]]]:
    """Return a row for each situation, with a square for each candidate.

    `verdicts` has, by candidate and situation, how many cases came to each verdict.
    """
    return [
        (situation, [_square(counts.get(situation, {})) for counts in verdicts.values()])
        for situation in situations
    ]


def _square(counts: Counts) -> Square:
    refused = counts.get("UNSUPPORTED", 0)
    judged = sum(counts.values()) - refused
    failed = judged - sum(counts.get(verdict, 0) for verdict in PASSED)
    tooltip = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "never met"
    if not judged:
        return Square("refused" if refused else "never", tooltip, "none")
    text = f"{failed} of {judged}" if failed else str(judged)
    return Square(text, tooltip, "failed" if failed else "passed")
