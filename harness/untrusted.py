"""Input that cannot be trusted: files, documents and texts that another program or person made.

1. A file is read only if it is a regular file within a limit of bytes: a link could lead to any
   file, a pipe could block, and a device could be endless.
2. A document is converted to an annotated record, and anything that does not fit is an error that
   names the field.
3. A text is sanitized before it is printed: a terminal finds nothing in it to obey.
"""

import json
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypeVar

# Characters of a printed text; the rest is cut.
LONGEST = 1 << 16
# Control characters except tabs and line ends, characters without a width, those that change the
# direction of writing, and surrogates.
HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff]"
)
# Messages of msgspec that name a field in their text, not in their path, by how they begin; and
# what this module reports of that field instead.
FIELD_ERRORS = {
    "Object missing required field `": "is missing",
    "Object contains unknown field `": "is not known",
}
# Characters of a message about a document, whose names and values may have any length.
LONGEST_MESSAGE = 200
Record = TypeVar("Record")


class BadInput(ValueError):
    """Input of the user that cannot be used; its message is all that the user sees.

    The message names the field, the value and a remedy.
    """


class NotReadable(ValueError):
    """The path is not a regular file, or the file is larger than allowed."""


class Misfit(ValueError):
    """A document does not fit its record; the message names the field and what is wrong."""


def read_file(file: str | Path, most: int) -> bytes:
    """Return the content of a regular file; raise `NotReadable` if it is anything else.

    It reads at most `most` bytes, never blocks, and follows no link: a bundle that another person
    sent could hold a link to any file.
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
            # The file may be growing.
            return opened.read(status.st_size)
    finally:
        os.close(number)


def read_json(data: bytes) -> Any:
    """Parse JSON and sanitize its texts; raise `ValueError` or `RecursionError` if it fails."""
    return _sanitize_all(json.loads(data))


def _sanitize_all(value: Any) -> Any:
    if isinstance(value, str):
        return _sanitize(value)
    if isinstance(value, list):
        return [_sanitize_all(item) for item in value]
    if isinstance(value, dict):
        return {_sanitize(key): _sanitize_all(item) for key, item in value.items()}
    return value


def fitted(value: Any, kind: type[Record], where: str = "") -> Record:
    """Convert a document to a record of this type; raise `Misfit` if a field does not fit.

    `where` is the path of the document itself, which the message puts before the field.
    """
    import msgspec

    def read_counter(_: type, value: Any) -> Counter[str]:
        """Convert the one type of field that JSON does not have."""
        try:
            return Counter(msgspec.convert(value, dict[str, Annotated[int, msgspec.Meta(ge=0)]]))
        except msgspec.ValidationError as error:
            # msgspec adds the path of the counter; the path inside it would hide that.
            raise ValueError(str(error).partition(" - at `")[0]) from None

    try:
        return msgspec.convert(value, kind, dec_hook=read_counter)
    except msgspec.ValidationError as error:
        raise Misfit(_describe_misfit(str(error), where)) from None


def _describe_misfit(error: str, where: str) -> str:
    """Rewrite a message of msgspec as `field: problem`, on one line."""
    problem, _, path = error.rpartition(" - at `") if " - at `" in error else (error, "", "$`")
    field = (where + path.removeprefix("key` in `")[1:-1]).removeprefix(".")
    for beginning, replacement in FIELD_ERRORS.items():
        if problem.startswith(beginning):
            name = problem.removeprefix(beginning).removesuffix("`")
            field, problem = f"{field}.{name}".removeprefix("."), replacement
    problem = f"{problem[:1].lower()}{problem[1:]}"
    message = " ".join(f"{field}: {problem}".removeprefix(": ").split())
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}…"


def _sanitize(text: str) -> str:
    """Replace every character that could move, colour or turn the text around it."""
    return HARMFUL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def printable(text: str) -> str:
    """Sanitize a text, and cut it to a length that a person reads."""
    return _sanitize(text if len(text) <= LONGEST else f"{text[:LONGEST]} … cut")
