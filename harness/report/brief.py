"""A comparison in a few lines, for the output of tests, where several are read in a row."""

import math
from collections.abc import Sequence

from harness.compare import Comparison
from harness.report.text import explanation_lines, name_lines

# The room for one comparison: lines of a terminal of so many columns.
MOST_LINES, COLUMNS = 12, 80
# Labels of the lines that are always shown, and of those that follow first if there is room.
ALWAYS, NEXT = ("case", "against", "found", "first", "value"), ("stack", "cause", "then")
# A stack that is too long keeps its last lines.
MOST_FRAMES = 5
LABEL_WIDTH = len("  replay  ")


def headline(comparison: Comparison) -> str:
    """Return its verdict with its name and what shows that, or else with its fault or reason."""
    name = "".join(line[LABEL_WIDTH:] for line in name_lines(comparison)[:1])
    fault = comparison.fault.summary if comparison.fault and ": " not in name else ""
    why = ": ".join(filter(None, (name, fault))) or comparison.reason
    return f"{comparison.verdict.name} {why}"


def brief(comparison: Comparison, after: Sequence[str] = (), most: float = MOST_LINES) -> str:
    """Return the headline and those lines of `explain` for which there is room.

    The lines `after` follow the one that replays it, such as the path of its bundle.
    """
    title = headline(comparison)
    lines = [(line[:LABEL_WIDTH].strip(), line) for line in explanation_lines(comparison)]
    first = [title, *(line for wanted in ALWAYS for label, line in lines if label == wanted)]
    last = [*(line for label, line in lines if label == "replay"), *after]
    room = most - sum(map(_height, (*first, *last)))
    left = [each for each in lines[1:] if each[0] not in ("looks", "why", "replay", *ALWAYS)]
    for label, line in sorted(left, key=lambda each: (*NEXT, each[0]).index(each[0])):
        shown = line
        if label == "stack" and _height(line) > room:
            head, *frames = line.split("\n")
            shown = "\n".join((head, *frames[-MOST_FRAMES:]))
        is_in_title = label == "fault" and comparison.fault and comparison.fault.summary in title
        if _height(shown) <= room and not is_in_title:
            first.append(shown)
            room -= _height(shown)
    return "\n".join((*first, *last))


def _height(text: str) -> int:
    """Return how many lines of a terminal a text takes."""
    return sum(max(1, math.ceil(len(line) / COLUMNS)) for line in text.split("\n"))
