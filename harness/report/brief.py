"""A comparison in a report of tests, where several are read one after the other."""

import math
from collections.abc import Sequence

from harness.compare import Comparison
from harness.report.text import look_lines, told

# So many lines of a terminal, for as far as that goes.
MOST_LINES, COLUMNS = 12, 80
# What stands there whatever room there is, and what comes next; of a stack the end, if need be.
FIRST, NEXT = ("case", "against", "found", "first", "value"), ("stack", "cause", "then")
MOST_FRAMES = 5
WORD = len("  replay  ")


def headline(comparison: Comparison) -> str:
    """Its verdict, what it is called, and what shows that."""
    name = "".join(line[WORD:] for line in look_lines(comparison)[:1])
    fault = comparison.fault.summary if comparison.fault and ": " not in name else ""
    why = ": ".join(filter(None, (name, fault))) or comparison.reason
    return f"{comparison.verdict.name} {why}"


def brief(comparison: Comparison, after: Sequence[str] = (), most: float = MOST_LINES) -> str:
    """What `explain` says, its name first, and no more than is read at once.

    After the line that replays it come others, such as where all of it is kept.
    """
    named, lines = headline(comparison), [(each[:WORD].strip(), each) for each in told(comparison)]
    first = [named, *(line for word in FIRST for label, line in lines if label == word)]
    last = [*(line for label, line in lines if label == "replay"), *after]
    room = most - sum(map(_height, (*first, *last)))
    left = [each for each in lines[1:] if each[0] not in ("looks", "why", "replay", *FIRST)]
    for label, line in sorted(left, key=lambda each: (*NEXT, each[0]).index(each[0])):
        shown = line
        if label == "stack" and _height(line) > room:
            head, *frames = line.split("\n")
            shown = "\n".join((head, *frames[-MOST_FRAMES:]))
        is_told = label == "fault" and comparison.fault and comparison.fault.summary in named
        if _height(shown) <= room and not is_told:
            first.append(shown)
            room -= _height(shown)
    return "\n".join((*first, *last))


def _height(text: str) -> int:
    """How many lines of a terminal it takes."""
    return sum(max(1, math.ceil(len(line) / COLUMNS)) for line in text.split("\n"))
