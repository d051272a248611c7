"""Types of options: how the text of an option becomes a value, and the error if it cannot."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

from cyclopts import Parameter, Token

from harness.against import ITSELF, PLAIN
from harness.case import Dtype
from harness.engine.lot import Part
from harness.untrusted import BadInput

Tokens = Sequence[Token]

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class UsageError(BadInput):
    """A word of the command line that cannot be used; the message names field and value."""


class Default(int):
    """The default of an option that takes a number: the user did not give it."""


def as_text(value: object) -> str | None:
    """Return the text that a user would give for a value; None for an empty or false one."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or None
    if isinstance(value, float):
        return f"{value:g}"
    return None if value is None or value is False else str(value) or None


def _refuse(token: Token, why: str, value: object = None) -> NoReturn:
    raise UsageError(f"{token.keyword}={token.value if value is None else value}: {why}")


def _number(
    kind: Callable[[str], float],
    is_allowed: Callable[[float], bool],
    why: str,
    metavar: str = "N",
) -> Parameter:
    """Return the parameter of a number, which refuses any other text for the reason `why`."""

    def read(_: object, tokens: Tokens) -> float:
        try:
            number = kind(tokens[-1].value)
        except ValueError:
            _refuse(tokens[-1], why)
        return number if is_allowed(number) else _refuse(tokens[-1], why)

    return Parameter(converter=read, metavar=metavar)


def _read_numbers(_: object, tokens: Tokens) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in tokens[-1].value.split(","))
    except ValueError:
        _refuse(tokens[-1], "use whole numbers separated by commas")
    if min(numbers) < 1:
        _refuse(tokens[-1], "use numbers of at least 1")
    if max(numbers) > 1024:
        _refuse(tokens[-1], "use numbers of at most 1024", max(numbers))
    return numbers


def _read_word(hint: Any, tokens: Tokens) -> str:
    return _require_known(tokens[-1], tokens[-1].value, get_args(hint))


def _read_reference(_: object, tokens: Tokens) -> str:
    from harness.candidates.registry import UnknownCandidate, require_reference

    try:
        return require_reference(tokens[-1].value)
    except UnknownCandidate as error:
        raise UsageError(f"--{error}") from None


def _read_words(hint: Any, tokens: Tokens) -> tuple[str, ...]:
    known = get_args(get_args(hint)[0])
    words = tokens[-1].value.split(",")
    return tuple(_require_known(tokens[-1], word, known) for word in words)


def _require_known(token: Token, word: str, known: tuple[str, ...]) -> str:
    return word if word in known else _refuse(token, f"use one of {', '.join(known)}", word)


def _read_texts(_: object, tokens: Tokens) -> tuple[str, ...]:
    return tuple(text for text in tokens[-1].value.split(",") if text)


def _read_part(_: object, tokens: Tokens) -> Part:
    match = _SHARD.fullmatch(tokens[-1].value)
    if not match or int(match[2]) == 0:
        _refuse(tokens[-1], "use K/N, for example 3/16")
    number, of = map(int, match.groups())
    if not 1 <= number <= of:
        _refuse(tokens[-1], f"use numbers from 1/{of} to {of}/{of}")
    return Part(number, of)


def _read_stated(_: object, tokens: Tokens) -> tuple[str, ...]:
    from harness.case.stated import InvalidField, read_stated

    try:
        return tuple(token.value for token in tokens if read_stated(token.value))
    except InvalidField as error:
        raise UsageError(f"--set={error}") from None


# With so many tokens there are four million cases.
MOST_TOKENS = 8
MOST_SEED = (1 << 63) - 1
ABOVE_ZERO = "use a number of seconds above zero"
A_CASE = "at least one case must be examined; use a whole number"
WORD = Parameter(converter=_read_word)
LIST = Parameter(converter=_read_words, metavar="LIST", n_tokens=1)

Count = Annotated[int, _number(int, lambda n: n >= 1, A_CASE)]
MostTokens = Annotated[
    int,
    _number(int, lambda n: 1 <= n <= MOST_TOKENS, f"use a whole number from 1 to {MOST_TOKENS}"),
]
Failures = Annotated[int, _number(int, lambda n: n >= 1, "use how many failures to look for")]
Ranks = Annotated[int, _number(int, lambda _: True, "use a whole number")]
Seed = Annotated[
    int,
    _number(int, lambda n: 0 <= n <= MOST_SEED, f"use a whole number from 0 to {MOST_SEED}", "S"),
]
Seconds = Annotated[float, _number(float, lambda n: n > 0, ABOVE_ZERO, "SECONDS")]
Deadline = Annotated[float, _number(float, lambda n: 0 < n < 1e6, ABOVE_ZERO, "SECONDS")]
Numbers = Annotated[
    tuple[int, ...], Parameter(converter=_read_numbers, metavar="LIST", n_tokens=1)
]
Texts = Annotated[tuple[str, ...], Parameter(converter=_read_texts, metavar="LIST", n_tokens=1)]
Stated = Annotated[tuple[str, ...], Parameter(converter=_read_stated, metavar="FIELD=LIST")]
Shard = Annotated[
    Part, Parameter(converter=_read_part, metavar="K/N", n_tokens=1, accepts_keys=False)
]
Folder = Annotated[Path, Parameter(metavar="DIR")]
Candidates = Annotated[tuple[str, ...], Parameter(metavar="C")]
Dtypes = Annotated[tuple[Dtype, ...], LIST]
Compared = Annotated[
    str, Parameter(converter=_read_reference, metavar=f"{PLAIN}|{ITSELF}|FILE:RECIPE")
]
