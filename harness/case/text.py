"""Parses a line of text into a case.

Fields may come in any order; missing fields have the defaults of `Case`.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from harness.case.case import CHOICES, MAX_TOKENS, USUAL, Case
from harness.case.invalid import InvalidCase
from harness.case.line import ALWAYS, FORMAT, LAST, SETTING, UNLESS_DEFAULT
from harness.case.row import Row

# More characters than the line of any valid case has.
MAX_LINE = 1 << 28

_RUNS = re.compile(r"([01])\{([1-9][0-9]{0,8})\}|([01])")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_FRACTION = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[-+]?[0-9]{1,3})?")


def parse(text: str) -> Case:
    """Return the case that a line describes; raise `InvalidCase` for anything else."""
    if not isinstance(text, str):
        raise InvalidCase.because("case", repr(text), "use the line that `str(case)` gives")
    if len(text) > MAX_LINE:
        raise InvalidCase.because("case", f"{len(text)} characters", f"at most {MAX_LINE}")
    head, *words = text.split() or [""]
    if head != f"case/{FORMAT}":
        raise InvalidCase.because(
            "case", repr(head), f"a case line starts with case/{FORMAT} in this version"
        )
    fields: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        is_setting = name.startswith(SETTING)
        if not is_setting and name not in _READERS:
            known = ", ".join((*_READERS, f"{SETTING}NAME"))
            raise InvalidCase.because(name or "case", repr(word), f"unknown field; use {known}")
        if not equals:
            raise InvalidCase.because(name, "nothing", f"write {name}=VALUE")
        if name in settings or any(field in fields for field in _FIELDS.get(name, (name,))):
            raise InvalidCase.because(name, value, "stated twice; keep one")
        if is_setting:
            settings[name] = value
        else:
            fields.update(_READERS[name](name, value))
    if "rows" not in fields:
        raise InvalidCase.because("rows", "nothing", "a case needs rows, for example rows=3:111")
    named = ((name.removeprefix(SETTING), value) for name, value in settings.items())
    return Case(**fields, settings=tuple(sorted(named)))


def read_mask(field: str, text: str) -> str:
    """Return the bits of a mask, with runs such as `1{800}` written out."""
    bits: list[str] = []
    total = position = 0
    while position < len(text):
        match = _RUNS.match(text, position)
        if not match:
            raise InvalidCase.because(field, text, "a mask is 0s and 1s, or runs such as 1{800}")
        bit, run, plain = match.groups()
        count = int(run) if run else 1
        total += count
        if total > MAX_TOKENS:
            raise InvalidCase.because(field, text, f"a batch has at most {MAX_TOKENS} tokens")
        bits.append(bit * count if run else plain)
        position = match.end()
    return "".join(bits)


def _read_rows(name: str, value: str) -> dict[str, Any]:
    rows = []
    for r, text in enumerate(value.split(",")):
        field = f"{name}[{r}]"
        length, _, rest = text.partition(":")
        mask_text, _, side = rest.partition(":")
        if side not in ("", "left", "right"):
            raise InvalidCase.because(field, text, "padding goes left or right")
        mask = read_mask(field, mask_text)
        tokens = _whole_number(field, length)
        if len(mask) > tokens:
            raise InvalidCase.because(
                field,
                text,
                f"a mask of {len(mask)} bits on {tokens} tokens would supervise "
                "padding; give one bit per token",
            )
        if len(mask) < tokens or not mask:
            raise InvalidCase.because(
                field, text, f"{len(mask)} mask bits for {tokens} tokens; give one bit per token"
            )
        rows.append(Row(mask, "left" if side == "left" else "right"))
    return {"rows": tuple(rows)}


def _read_ids(name: str, value: str) -> dict[str, Any]:
    rule = "write one list of token ids per row, for example ids=[1,2,3],[4,5]"
    try:
        rows = json.loads(f"[{value}]")
    except (ValueError, RecursionError):
        raise InvalidCase.because(name, value, rule) from None
    if not all(isinstance(row, list) for row in rows):
        raise InvalidCase.because(name, value, rule)
    return {"ids": tuple(map(tuple, rows))}


def _read_heads(name: str, value: str) -> dict[str, Any]:
    heads, _, kv_heads = value.partition("/")
    return {
        "heads": _whole_number(name, heads),
        "kv_heads": _whole_number(name, kv_heads if "/" in value else heads),
    }


def _whole_number(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise InvalidCase.because(name, value or "nothing", "use a whole number")
    return int(value)


def _read_scalar(name: str, value: str) -> dict[str, Any]:
    attribute = _ATTRIBUTES[name]
    default = USUAL[attribute]
    if type(default) is bool:
        if value not in ("0", "1"):
            raise InvalidCase.because(name, value, "use 0 or 1")
        return {attribute: value == "1"}
    if type(default) is float:
        if not _FRACTION.fullmatch(value):
            raise InvalidCase.because(
                name, value or "nothing", "use a number such as 0.5 or -1e-05"
            )
        return {attribute: float(value)}
    return {attribute: value if attribute in CHOICES else _whole_number(name, value)}


# Name in a line -> field of `Case`, for the fields that have a single value.
_ATTRIBUTES = {**ALWAYS, **UNLESS_DEFAULT, **LAST}
# Name in a line -> the fields of `Case` that it sets, where the names differ.
_FIELDS = {"heads": ("heads", "kv_heads"), **{n: (a,) for n, a in _ATTRIBUTES.items()}}
# Name in a line -> a function of name and text that returns fields of `Case` and their values.
_READERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "rows": _read_rows,
    "ids": _read_ids,
    "heads": _read_heads,
    **dict.fromkeys(_ATTRIBUTES, _read_scalar),
}
