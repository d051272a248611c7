"""Read the bugs that are known of a published library, from its folder's known.toml."""

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import msgspec

from harness.candidates.published.library import BadFolder, Library
from harness.case import Case, parse
from harness.untrusted import fitted

# What a reader who had only the page and the library's source says of it: a maintainer accepts it
# at once; it is right but needs other words; a maintainer would close it; it is out of date.
Grade = Literal["A", "B", "C", "D"]
# What goes wrong without an error, or "loud": an error or NaN.
Severity = Literal["silent gradients", "silent loss", "log only", "loud"]
# How a user gets there.
Reach = Literal["default", "documented option", "undocumented", "documented as unsupported"]

_ADDRESSEE = re.compile(r"[\w.-]+/[\w.-]+")
_PRECEDENT = re.compile(r"(https://\S+) \((open|closed|merged|unknown)\): \S.*")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)?")


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
    # The place in the library's own source.
    where: str
    says: str
    # Shell patterns of every tensor that it can make wrong.
    tensors: tuple[str, ...]
    # For the library's maintainers: a heading, a possible mend, and what their main branch has.
    title: str
    mend: str
    main: str
    grade: Grade
    # Why not A; empty for A.
    graded: str
    severity: Severity
    reach: Reach
    # Where the library's documentation speaks of what reaches it, with a quote; empty if nowhere.
    documented: str
    # The repository that would mend it, as owner/name.
    addressee: str
    # What is wrong also in bugs of other libraries, in the same words there; empty if in no other.
    cause: str = ""
    # Issues and pull requests, each as "URL (open): what it says".
    precedents: tuple[str, ...]
    # What the library's newest release has in its place: read, not run.
    newest: str
    # What is otherwise in its script with --control, so that the same step is right: a clause.
    control: str = ""
    # Where its test belongs in the repository of the addressee; empty if it has none.
    test: str = ""

    @property
    def case(self) -> Case:
        return parse(self.line)

    @property
    def is_finding(self) -> bool:
        """Whether it has a page for the library's maintainers."""
        return self.grade in ("A", "B")

    @property
    def reported(self) -> tuple[str, ...]:
        """The addresses of its precedents."""
        return tuple(text.partition(" ")[0] for text in self.precedents)

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
    # The date of the pinned release; if there was a newer one when the bugs were graded, that one
    # and its date; and what Python the newest needs.
    released: str = ""
    newest: str = ""
    newest_date: str = ""
    python: str = ""
    # What the scripts of its findings import beside torch and its own pins; exact pins as well.
    lent: tuple[str, ...] = ()

    def newer_than(self, version: str) -> str:
        """Return the newest release and its date if it is not this version, else nothing."""
        if not self.newest or _number(self.newest) <= _number(version):
            return ""
        return f"{self.newest} of {self.newest_date}"


class _Known(msgspec.Struct, frozen=True):
    """The whole file; bugs are checked one by one, so that an error names its bug."""

    bug: tuple[dict[str, Any], ...] = ()
    library: About = About()


@cache
def bugs(library: Library) -> tuple[Bug, ...]:
    """Return all bugs in a folder's known.toml."""
    with _read_from(library) as known:
        return tuple(map(_read, known.bug))


@cache
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
        known = fitted(tomllib.loads(path.read_text()), _Known)
        for name in ("released", "newest_date"):
            date = getattr(known.library, name)
            _require(f"library.{name}", date, _DATE, "a date as 2026-11-20")
        yield known
    except ValueError as error:
        raise BadFolder(f"{path}: {error}") from error


def _read(table: dict[str, Any]) -> Bug:
    name = f"bug {table.get('key', '')!r}"
    bug = fitted(table, Bug, name)
    parse(bug.line)
    if bug.grade != "A" and not bug.graded:
        raise ValueError(f"{name}.graded: is empty, and grade {bug.grade!r} needs a reason")
    _require(f"{name}.addressee", bug.addressee, _ADDRESSEE, "owner/name")
    for precedent in bug.precedents:
        _require(f"{name}.precedents", precedent, _PRECEDENT, "as 'https://... (open): a text'")
    return bug


def _require(field: str, value: str, pattern: re.Pattern[str], form: str) -> None:
    if not pattern.fullmatch(value):
        raise ValueError(f"{field}: {value!r} is not {form}")


def _number(version: str) -> list[int]:
    """Return the numbers by which releases sort; a suffix, as in 0.19.8.post1, counts too."""
    return [int(part) for part in re.findall(r"\d+", version)]
