"""What is known to be wrong with a published candidate, as its folder's known.toml has it."""

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from harness.candidates.published.library import BadFolder, Library
from harness.case import Case, InvalidCase, parse

_LISTS = ("candidate", "looks", "when", "tensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One fault of released code, told as one would to its maintainers."""

    key: str
    # The folder's entries in which the bug shows.
    candidate: tuple[str, ...]
    # What the harness calls it.
    looks: tuple[str, ...]
    # What experiments call it with its first candidate, from required keys alone; empty where the
    # pinned release is without it. And what that name gets wrong or leaves out, judged by hand.
    named: str
    differs: str
    # Without these a case cannot show the bug: situations by name, or a field as in "sp>1".
    when: tuple[str, ...]
    # The smallest case that shows it, and the golden of the same batch.
    line: str
    golden: str
    # The first release in which it was seen, and the first without it; empty where unknown.
    since: str
    fixed: str
    # Where it was reported; empty where no report was found.
    link: str
    # The place in the library's own source.
    where: str
    says: str
    # Every tensor that it can make wrong, as shell patterns.
    tensors: tuple[str, ...]
    # For the library's maintainers: a heading, a possible mend, and what their main branch has.
    title: str
    mend: str
    main: str

    @property
    def case(self) -> Case:
        return parse(self.line)

    def is_in(self, version: str) -> bool:
        """Whether a release has the bug, as far as is known."""
        begun = not self.since or _number(self.since) <= _number(version)
        return begun and not (self.fixed and _number(self.fixed) <= _number(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a library's users are told at once."""

    # Stars on GitHub in thousands, roughly: tables list the most used library first.
    stars: float = 0.0
    # What to do today, in a sentence.
    today: str = ""


@cache
def bugs(library: Library) -> tuple[Bug, ...]:
    """All entries of a folder's known.toml."""
    with _read_from(library) as document:
        return tuple(_read(table) for table in document.get("bug", []))


def about(library: Library) -> About:
    """What a folder's known.toml says of all of it."""
    with _read_from(library) as document:
        return About(**document.get("library", {}))


@contextmanager
def _read_from(library: Library) -> Iterator[dict[str, Any]]:
    path = library.folder / "known.toml"
    if not path.is_file():
        raise BadFolder(f"candidate={library.name}: {library.folder} has no known.toml")
    try:
        yield tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, InvalidCase, TypeError, ValueError) as error:
        raise BadFolder(f"{path}: {error}") from error


def _read(table: dict[str, object]) -> Bug:
    names = {field.name for field in fields(Bug)}
    if table.keys() != names:
        raise ValueError(
            f"bug {table.get('key', '')!r}: needs {', '.join(sorted(names))}; differs in "
            f"{', '.join(sorted(names ^ table.keys()))}"
        )
    values: dict[str, str | tuple[str, ...]] = {}
    for name, value in table.items():
        if name in _LISTS:
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                raise ValueError(f"bug {table['key']!r}: {name} is a list of words")
            values[name] = tuple(value)
        elif not isinstance(value, str):
            raise ValueError(f"bug {table['key']!r}: {name} is a text")
        else:
            values[name] = value
    bug = Bug(**values)  # type: ignore[arg-type]
    parse(bug.line)
    return bug


def _number(version: str) -> list[int]:
    """The numbers by which releases sort; a suffix, as in 0.19.8.post1, counts too."""
    return [int(part) for part in re.findall(r"\d+", version)]
