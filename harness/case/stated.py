"""Reads fields of a case that are stated instead of drawn: `window=none`, `layers=1,2`.

Two things are written in this way: what a caller of a command wants to see in every case, and
the limits of a candidate, several of them in one text: `loss=token-mean steps=1`. What `shapes`
says of all rows of a case is stated like a field: `targets=answer`.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from harness.case.case import Case
from harness.case.invalid import InvalidCase
from harness.case.line import ALWAYS, SETTING, UNLESS_DEFAULT
from harness.case.shapes import SHAPES
from harness.case.text import parse
from harness.untrusted import BadInput

# Name in a line -> field of `Case`.
FIELDS = {**ALWAYS, **UNLESS_DEFAULT, "dtype": "dtype"}
# Name in a line -> the option of commands that states this field.
ASKED = {
    "sp": "sps",
    "dp": "dps",
    "dtype": "dtypes",
    "loss": "losses",
    "kernel": "kernels",
    "wrapper": "wrappers",
}
# The limit of a step whose process groups span all ranks: a case must leave no rank idle.
ALL_RANKS = "ranks=all"
# One value of these fields does not fit different cases, so they cannot be stated.
NEVER_STATED = ("rows", "ids", "heads", "seed")
# A stated value is checked by parsing it in one of these lines. The second is for values that
# only half precisions may have.
SAMPLE_LINES = ("case/1 rows=2:11,2:11", "case/1 rows=2:11,2:11 dtype=bf16")


class InvalidField(BadInput):
    """A field that cannot be stated, or a value that it cannot have."""


def read_stated(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return a field of `Case` and its allowed values, from a text such as `layers=1,2`.

    A setting counts as a field, such as `setting.packed`. Raises `InvalidField` also for a field
    that has an option of its own.
    """
    return _read(text, {name: field for name, field in FIELDS.items() if name not in ASKED})


def split_by_option(stated: Iterable[str]) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """Return the values of stated fields that have an option, by option, and the other texts."""
    by_option, others = dict[str, tuple[Any, ...]](), list[str]()
    for text in stated:
        name = text.partition("=")[0]
        if name in ASKED:
            by_option[ASKED[name]] = _read(text, FIELDS)[1]
        else:
            others.append(text)
    return by_option, tuple(others)


def fields_to_prove(stated: Iterable[str]) -> tuple[str, ...]:
    """Return the stated fields of which each value has to be judged.

    Shapes of rows are not among them: every case that is drawn has those that were asked for.
    """
    return tuple(field for field, _ in map(read_stated, stated) if field not in SHAPES)


def having(case: Case, fields: Mapping[str, Any]) -> Case:
    """Return the case with these values of fields, settings and shapes of rows."""
    shapes = {name: value for name, value in fields.items() if name in SHAPES}
    others = {name: value for name, value in fields.items() if name not in SHAPES}
    case = replace(case, **arguments(others))
    for name, value in shapes.items():
        case = SHAPES[name].given(case, value)
    return case


def arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields, among which settings count, as arguments of `Case`."""
    settings = {name: value for name, value in fields.items() if name.startswith(SETTING)}
    if not settings:
        return dict(fields)
    pairs = sorted((name.removeprefix(SETTING), value) for name, value in settings.items())
    others = {name: value for name, value in fields.items() if name not in settings}
    return {**others, "settings": tuple(pairs)}


def value_of(case: Case, field: str) -> object:
    """Return the value of a field, or of a setting; None for a setting that is not stated."""
    if field.startswith(SETTING):
        return dict(case.settings).get(field.removeprefix(SETTING))
    return getattr(case, field)


def undeclared_setting(case: Case, limits: str) -> str:
    """Return the first setting of a case that limits do not name, or ""."""
    names = {limit.partition("=")[0] for limit in limits.split()}
    settings = (f"{SETTING}{name}" for name, _ in case.settings)
    return next((name for name in settings if name not in names), "")


def violated_limit(case: Case, limits: str, ranks: int, without: Container[str] = ()) -> str:
    """Return the first limit that a case violates on a pool of so many ranks, or "".

    Limits on the fields in `without` do not apply. A setting that the case leaves out has its
    default, which is within all limits.
    """
    for limit in _split(limits):
        if limit == ALL_RANKS:
            if case.ranks != ranks:
                return f"{limit}, of which there are {ranks}"
            continue
        attribute, values = _read(limit, FIELDS)
        if attribute not in without and not is_within(case, attribute, values):
            return limit
    return ""


def is_within(case: Case, field: str, values: Sequence[Any]) -> bool:
    """Return whether a case has one of these values of a field, a setting or a shape of rows."""
    if field in SHAPES:
        return any(SHAPES[field].holds(case, value) for value in values)
    value = value_of(case, field)
    is_default = value is None and field.startswith(SETTING)
    return is_default or value in values


def require_valid_limits(limits: str) -> None:
    """Raise `BadField` if a candidate's limits are malformed or state a field twice."""
    stated = [_read(limit, FIELDS)[0] for limit in _split(limits) if limit != ALL_RANKS]
    for attribute in stated:
        if stated.count(attribute) > 1:
            raise InvalidField(
                f"limits={limits}: {attribute} is stated twice; put all values in one"
            )


def _split(limits: str) -> list[str]:
    if not isinstance(limits, str):
        raise InvalidField(f"limits={limits!r}: must be a text, such as 'loss=token-mean steps=1'")
    return limits.split()


def spans_all_ranks(limits: str) -> bool:
    """Return whether these limits demand that no rank is idle."""
    return ALL_RANKS in limits.split()


def _read(text: str, fields: Mapping[str, str]) -> tuple[str, tuple[Any, ...]]:
    name, _, values = text.partition("=")
    if name == "ranks":
        raise InvalidField(f"{text}: of ranks, limits can say {ALL_RANKS} and nothing else")
    if name in NEVER_STATED:
        raise InvalidField(f"{text}: {name} cannot be stated; a step refuses cases in supports()")
    if values.endswith(","):
        raise InvalidField(f"{text}: ends with a comma; write a list without blanks, {name}=1,2")
    if name in FIELDS and name not in fields:
        raise InvalidField(f"{text}: {name} has an option of its own; use that")
    if name.startswith(SETTING):
        return name, tuple(_read_value(name, name, value) for value in values.split(","))
    if name in SHAPES:
        listed = tuple(values.split(","))
        for value in listed:
            if value not in SHAPES[name].values:
                known = ", ".join(SHAPES[name].values)
                raise InvalidField(f"{name}={value}: use one of {known}")
        return name, listed
    if name not in fields:
        near = ", ".join(get_close_matches(name, [*fields, *SHAPES], 3, 0.0))
        raise InvalidField(f"{text}: a case has no such field to be stated; near: {near}")
    attribute = fields[name]
    return attribute, tuple(_read_value(name, attribute, value) for value in values.split(","))


# Ranks check every case against the same few limits, so parsing each value once is enough.
@cache
def _read_value(name: str, attribute: str, text: str) -> object:
    if (name, text) == ("window", "none"):
        return None
    if name in ("sp", "dp") and text.isdecimal():
        # A sample line has too few heads and rows for most sizes.
        return int(text)
    reason = ""
    for line in SAMPLE_LINES:
        try:
            return value_of(parse(f"{line} {name}={text}"), attribute)
        except InvalidCase as error:
            reason = reason or str(error)
    also = "; or none" if name == "window" else ""
    raise InvalidField(f"{name}={text}: {reason}{also}")
