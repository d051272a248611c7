"""Input that cannot be trusted: errors about it, files read within bounds, text made printable."""

import json
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypeVar

# No line that a person reads is longer.
LONGEST = 1 << 16
# Control signs but for tabs and ends of lines, signs without a width, those that turn the
# direction of writing, and halves of a sign.
HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff]"
)
# What msgspec says of a field that is not where it says, and what is said of that field here.
SAID = {
    "Object missing required field `": "is missing",
    "Object contains unknown field `": "is not known",
}
# Names and values in a sentence may have any length.
LONGEST_SAID = 200
Record = TypeVar("Record")


class BadInput(ValueError):
    """It cannot be used: the message names field, value and remedy, and is all that is shown."""


class NotReadable(ValueError):
    """It is no file, or larger than it may be."""


class Misfit(ValueError):
    """A document holds what cannot be there: the message names the field, and what is wrong."""


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


def fitted(value: Any, kind: type[Record], where: str = "") -> Record:
    """The record that a document holds, each field as it is annotated; `Misfit` if it is none."""
    import msgspec

    def counted(_: type, value: Any) -> Counter[str]:
        """There is no other kind of field that JSON does not have."""
        try:
            return Counter(msgspec.convert(value, dict[str, Annotated[int, msgspec.Meta(ge=0)]]))
        except msgspec.ValidationError as error:
            # So that the field is named that it is in.
            raise ValueError(str(error).partition(" - at `")[0]) from None

    try:
        return msgspec.convert(value, kind, dec_hook=counted)
    except msgspec.ValidationError as error:
        raise Misfit(_told(str(error), where)) from None


def _told(error: str, where: str) -> str:
    """What is wrong, and with which field: as one sentence that somebody reads."""
    what, _, at = error.rpartition(" - at `") if " - at `" in error else (error, "", "$`")
    field = (where + at.removeprefix("key` in `")[1:-1]).removeprefix(".")
    for begins, says in SAID.items():
        if what.startswith(begins):
            name = what.removeprefix(begins).removesuffix("`")
            field, what = f"{field}.{name}".removeprefix("."), says
    what = f"{what[:1].lower()}{what[1:]}"
    said = " ".join(f"{field}: {what}".removeprefix(": ").split())
    return said if len(said) <= LONGEST_SAID else f"{said[:LONGEST_SAID]}…"


def harmless(text: str) -> str:
    """As a terminal may have it: nothing in it moves, colours or turns what stands around it."""
    return HARMFUL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def printable(text: str) -> str:
    """Make it printable, and no longer than a person reads."""
    return harmless(text if len(text) <= LONGEST else f"{text[:LONGEST]} … cut")
