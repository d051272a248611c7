"""Fields of a case that are stated instead of drawn: `window=none`, `layers=1,2`."""

from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from harness.case.case import Case
from harness.case.invalid import InvalidCase
from harness.case.line import ALWAYS, UNLESS_DEFAULT
from harness.case.text import parse
from harness.untrusted import BadInput

# As a line calls them, and their attributes.
FIELDS = {**ALWAYS, **UNLESS_DEFAULT, "dtype": "dtype"}
# Commands have options for these.
ASKED = {
    "sp": "sps",
    "dp": "dps",
    "dtype": "dtypes",
    "loss": "losses",
    "kernel": "kernels",
    "wrapper": "wrappers",
}
# A step with groups of its own over all ranks: a case must leave none of them idle.
ALL_RANKS = "ranks=all"
# Most of a case has them in its own way.
BY_CASE = ("rows", "ids", "heads", "seed")
# Some values are for half precisions only.
LINES = ("case/1 rows=2:11,2:11", "case/1 rows=2:11,2:11 dtype=bf16")


class BadField(BadInput):
    """It cannot be stated so."""


def read_stated(text: str) -> tuple[str, tuple[Any, ...]]:
    """An attribute of a case, and the values that it may have."""
    return _read(text, {name: each for name, each in FIELDS.items() if name not in ASKED})


def divided(stated: Iterable[str]) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """Split what is stated: fields with an option of their own, by its name, and the others."""
    asked, others = dict[str, tuple[Any, ...]](), list[str]()
    for text in stated:
        name = text.partition("=")[0]
        if name in ASKED:
            asked[ASKED[name]] = _read(text, FIELDS)[1]
        else:
            others.append(text)
    return asked, tuple(others)


def outside(case: Case, limits: str, ranks: int, without: Container[str] = ()) -> str:
    """The limit that leaves this case out where there are so many ranks, or nothing.

    Each is read as above, of any field but those `without` which the case is asked.
    """
    for limit in _each(limits):
        if limit == ALL_RANKS:
            if case.ranks != ranks:
                return f"{limit}, of which there are {ranks}"
            continue
        attribute, values = _read(limit, FIELDS)
        if attribute not in without and getattr(case, attribute) not in values:
            return limit
    return ""


def require_readable(limits: str) -> None:
    """Raise what is wrong with a candidate's limits."""
    stated = [_read(limit, FIELDS)[0] for limit in _each(limits) if limit != ALL_RANKS]
    for attribute in stated:
        if stated.count(attribute) > 1:
            raise BadField(f"limits={limits}: {attribute} is stated twice; put all values in one")


def _each(limits: str) -> list[str]:
    if not isinstance(limits, str):
        raise BadField(f"limits={limits!r}: must be a text, such as 'loss=token-mean steps=1'")
    return limits.split()


def spans_all_ranks(limits: str) -> bool:
    """Whether no rank may be idle."""
    return ALL_RANKS in limits.split()


def _read(text: str, fields: Mapping[str, str]) -> tuple[str, tuple[Any, ...]]:
    name, _, listed = text.partition("=")
    if name == "ranks":
        raise BadField(f"{text}: of ranks, limits can say {ALL_RANKS} and nothing else")
    if name in BY_CASE:
        raise BadField(f"{text}: {name} cannot be stated; a step refuses cases in supports()")
    if listed.endswith(","):
        raise BadField(f"{text}: ends with a comma; write a list without blanks, {name}=1,2")
    if name in FIELDS and name not in fields:
        raise BadField(f"{text}: {name} has an option of its own; use that")
    if name not in fields:
        near = ", ".join(get_close_matches(name, fields, 3, 0.0))
        raise BadField(f"{text}: a case has no such field to be stated; near: {near}")
    attribute = fields[name]
    return attribute, tuple(_value(name, attribute, each) for each in listed.split(","))


# Ranks hold every case against the same few limits.
@cache
def _value(name: str, attribute: str, text: str) -> object:
    if (name, text) == ("window", "none"):
        return None
    if name in ("sp", "dp") and text.isdecimal():
        # Not every size goes with the few heads and rows of those lines.
        return int(text)
    why = ""
    for line in LINES:
        try:
            return getattr(parse(f"{line} {name}={text}"), attribute)
        except InvalidCase as error:
            why = why or str(error)
    also = "; or none" if name == "window" else ""
    raise BadField(f"{name}={text}: {why}{also}")
