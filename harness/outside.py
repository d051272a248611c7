"""What comes from outside: errors about it, files of it, and text of it for a terminal."""

import json
import math
import os
import re
import stat
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

# No line that a person reads is longer.
LONGEST = 1 << 16
# Control signs but for tabs and ends of lines, signs without a width, those that turn the
# direction of writing, and halves of a sign.
HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff]"
)


class BadInput(ValueError):
    """It cannot be used: the message names field, value and remedy, and is all that is shown."""


class NotReadable(ValueError):
    """It is no file, or larger than it may be."""


def read_file(file: str | Path, most: int) -> bytes:
    """All of a regular file; never more than is allowed, and nothing is waited for.

    No link is followed: whoever sent one could have any file read.
    """
    if Path(file).is_symlink():
        raise NotReadable("is no file, but a link; put in its place what it leads to")
    number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise NotReadable("is no file")
        if status.st_size > most:
            raise NotReadable(f"has {status.st_size} bytes; use one of at most {most}")
        with os.fdopen(number, "rb", closefd=False) as opened:
            # It may be growing.
            return opened.read(status.st_size)
    finally:
        os.close(number)


def read_json(data: bytes) -> Any:
    """What a document says, its texts harmless; `ValueError` or `RecursionError` if it is none."""
    return _cleaned(json.loads(data))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {harmless(key): _cleaned(each) for key, each in value.items()}
    return value


def fits(value: object, hint: Any) -> bool:
    """Whether it is what its annotation says, all of it: a document may hold anything."""
    kind, inner = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        # What is not compared is in no document.
        good = all(fits(getattr(value, f.name), f.type) for f in fields(hint) if f.compare)
    elif hint is Any:
        good = True
    elif kind is Literal:
        good = type(value) is str and value in inner
    elif isinstance(value, dict):
        # A counter has the kind of its keys only.
        key, its = (*inner, int)[:2]
        good = all(fits(k, key) and fits(v, its) for k, v in value.items())
    elif isinstance(value, (list, tuple)):
        good = kind is type(value) and all(fits(each, inner[0]) for each in value)
    elif hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        good = number and math.isfinite(value)  # type: ignore[arg-type]
    else:
        good = type(value) is hint
    return good


def harmless(text: str) -> str:
    """As a terminal may have it: nothing in it moves, colours or turns what stands around it."""
    return HARMFUL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def printable(text: str) -> str:
    """Make it printable, and no longer than a person reads."""
    return harmless(text if len(text) <= LONGEST else f"{text[:LONGEST]} … cut")
