"""Settings of a step and of its recipe: by name, the values to try, the default first.

A case has the values as texts. What plain training or the step is given are the values themselves.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.case.case import Case
from harness.case.invalid import InvalidCase
from harness.case.line import SETTING
from harness.case.row import Row
from harness.case.stated import InvalidField

Settings = Mapping[str, Sequence[Any]]
NONE: Settings = {}


def as_text(value: object) -> str:
    """Write a value as a case has it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def as_limits(settings: Settings) -> str:
    """Write settings and their values as limits of a candidate."""
    listed = (f"{SETTING}{n}={','.join(map(as_text, v))}" for n, v in settings.items())
    return " ".join(listed)


def chosen(settings: Settings, case: Case) -> dict[str, Any]:
    """Return the value of each setting in a case; the first one where the case states none."""
    stated = dict(case.settings)
    return {
        name: next(v for v in values if as_text(v) == stated.get(name, as_text(values[0])))
        for name, values in settings.items()
    }


def listed(limits: str) -> dict[str, list[str]]:
    """Return the settings that limits name, with the texts of their values."""
    pairs = (limit.split("=", 1) for limit in limits.split() if limit.startswith(SETTING))
    return {name.removeprefix(SETTING): values.split(",") for name, values in pairs}


def named_by(function: Callable[..., Any], settings: Settings) -> Settings:
    """Return those settings of which a function has a parameter by that name."""
    parameters = inspect.signature(function).parameters if settings else {}
    return {name: values for name, values in settings.items() if name in parameters}


def require_valid(settings: Settings, function: Callable[..., Any]) -> None:
    """Raise `InvalidField` unless each setting has distinct values, and the function takes it."""
    for name, values in settings.items():
        texts = [as_text(value) for value in values]
        if len(set(texts)) < max(2, len(texts)):
            raise InvalidField(
                f"settings: {name} has the values {', '.join(texts) or 'nothing'}; "
                "give two or more different ones, the default first"
            )
        for text in texts:
            try:
                Case(rows=(Row("1"),), settings=((name, text),))
            except InvalidCase as error:
                raise InvalidField(str(error)) from None
    try:
        inspect.signature(function).bind_partial(**dict.fromkeys(settings))
    except TypeError as error:
        raise InvalidField(
            f"settings: {getattr(function, '__name__', function)} {error}; "
            f"give it the parameters {', '.join(settings)}"
        ) from None
