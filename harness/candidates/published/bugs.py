"""Read the bugs that are known of a published library, from its folder's known.toml."""

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec

from harness.candidates.published.library import BadFolder, Library
from harness.case import Case, parse
from harness.untrusted import fitted


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault of released code, described as for its maintainers."""

    key: str
    # The folder's entries in which the bug shows.
    candidate: tuple[str, ...]
    # The names that the harness gives it on one case.
    looks: tuple[str, ...]
    # The name that experiments give it with its first candidate, from required keys alone; empty
    # if the pinned release is without it. Then what that name misses, judged by hand.
    named: str
    differs: str
    # A case that shows the bug has these: situations by name, or a field as in "sp>1".
    when: tuple[str, ...]
    # The smallest case that shows it, and the golden of the same batch.
    line: str
    golden: str
    # The first release in which it was seen, and the first without it; empty if unknown.
    since: str
    fixed: str
    # Where it was reported; empty if no report was found.
    link: str
    # The place in the library's own source.
    where: str
    says: str
    # Shell patterns of every tensor that it can make wrong.
    tensors: tuple[str, ...]
    # For the library's maintainers: a heading, a possible mend, and what their main branch has.
    title: str
    mend: str
    main: str

    @property
    def case(self) -> Case:
        return parse(self.line)

    def is_in(self, version: str) -> bool:
        """Whether a release has the bug, as far as known."""
        has_begun = not self.since or _number(self.since) <= _number(version)
        return has_begun and not (self.fixed and _number(self.fixed) <= _number(version))


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts for a library's users."""

    # Stars on GitHub in thousands, roughly: tables list the most used library first.
    stars: float = 0.0
    # What its users should do today, in a sentence.
    today: str = ""


class _Known(msgspec.Struct, frozen=True):
    """The whole file; bugs are checked one by one, so that an error names its bug."""

    bug: tuple[dict[str, Any], ...] = ()
    library: About = About()


@cache
def bugs(library: Library) -> tuple[Bug, ...]:
    """Return all bugs in a folder's known.toml."""
    with _read_from(library) as known:
        return tuple(map(_read, known.bug))


def about(library: Library) -> About:
    """Return the facts for users in a folder's known.toml."""
    with _read_from(library) as known:
        return known.library


@contextmanager
def _read_from(library: Library) -> Iterator[_Known]:
    path = library.folder / "known.toml"
    if not path.is_file():
        raise BadFolder(f"candidate={library.name}: {library.folder} has no known.toml")
    try:
        yield fitted(tomllib.loads(path.read_text()), _Known)
    except ValueError as error:
        raise BadFolder(f"{path}: {error}") from error


def _read(table: dict[str, Any]) -> Bug:
    bug = fitted(table, Bug, f"bug {table.get('key', '')!r}")
    parse(bug.line)
    return bug


def _number(version: str) -> list[int]:
    """Return the numbers by which releases sort; a suffix, as in 0.19.8.post1, counts too."""
    return [int(part) for part in re.findall(r"\d+", version)]
