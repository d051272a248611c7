"""Fields of a case that are stated instead of drawn: `window=none`, `layers=1,2`."""

from difflib import get_close_matches
from typing import Any

from harness.case import InvalidCase, parse
from harness.case.line import ALWAYS, UNLESS_DEFAULT
from harness.outside import BadInput

# As a line calls them; what else a case has, others ask for by name.
FIELDS = {
    name: attribute
    for name, attribute in {**ALWAYS, **UNLESS_DEFAULT}.items()
    if name not in ("sp", "dp", "loss", "kernel", "wrapper")
}
# Some values are for half precisions only.
LINES = ("case/1 rows=2:11,2:11", "case/1 rows=2:11,2:11 dtype=bf16")


class BadField(BadInput):
    """It cannot be stated so."""


def read_stated(text: str) -> tuple[str, tuple[Any, ...]]:
    """An attribute of a case, and the values that it may have."""
    name, _, listed = text.partition("=")
    if name not in FIELDS:
        near = ", ".join(get_close_matches(name, FIELDS, 3, 0.0))
        raise BadField(f"{text}: a case has no such field to be stated; near: {near}")
    attribute = FIELDS[name]
    return attribute, tuple(_value(name, attribute, each) for each in listed.split(","))


def _value(name: str, attribute: str, text: str) -> object:
    if (name, text) == ("window", "none"):
        return None
    why = ""
    for line in LINES:
        try:
            return getattr(parse(f"{line} {name}={text}"), attribute)
        except InvalidCase as error:
            why = str(error)
    raise BadField(f"{name}={text}: {why}")
