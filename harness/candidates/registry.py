"""From a name on the command line to a candidate."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from harness.candidates.protocol import Candidate
from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Published, libraries
from harness.refusal import BadInput

BUILT_IN = {
    "native-gather": "harness.candidates.own.native:GATHER",
    "native-local": "harness.candidates.own.native:LOCAL",
}

# `mutants.B14` is the entry B14 of what this module has registered by that time.
BANKS = {"mutants": "harness.candidates.own.mutants", "benign": "harness.candidates.own.benign"}


class UnknownCandidate(BadInput):
    """The name leads to nothing that can be run; the message says where it broke."""


def resolve(name: str) -> str:
    """The name made independent of the current folder, so that ranks find the same file."""
    place, colon, attribute = name.rpartition(":")
    if colon and place.endswith(".py"):
        return f"{Path(place).resolve()}:{attribute}"
    return name


@dataclass(frozen=True, slots=True)
class Place:
    """Where the name of a candidate leads: into a bank, a file or a module, and there to what."""

    inside: Literal["bank", "library", "file", "module"]
    place: str
    attribute: str
    # Of a library: another release than the pinned one.
    version: str = ""


def locate(name: str) -> Place:
    """Read a built-in name, `path/to/file.py:NAME` or `package.module:NAME`; load nothing."""
    bank, dot, key = name.partition(".")
    if dot and bank in BANKS and ":" not in key:
        return Place("bank", bank, key)
    if dot and ":" not in key and bank in libraries():
        key, _, version = key.partition("@")
        return Place("library", bank, key, version)
    place, colon, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not colon:
        raise UnknownCandidate(
            f"candidate={name}: not built in; use {', '.join(BUILT_IN)}, one of those that "
            "`candidates list` names, path/to/file.py:NAME or package.module:NAME"
        )
    if not place.endswith(".py"):
        return Place("module", place, attribute)
    if not Path(place).is_file():
        raise UnknownCandidate(f"candidate={name}: there is no file {place}")
    return Place("file", place, attribute)


def not_in_bank(name: str, bank: str, key: str, known: Iterable[str]) -> UnknownCandidate:
    """A bank, or a library's folder, has no entry of this key."""
    near = ", ".join(difflib.get_close_matches(key, known, 3, 0.0))
    return UnknownCandidate(f"candidate={name}: there is no {key} in {bank}; near: {near}")


def load(name: str) -> Candidate:
    """The candidate behind a name."""
    found = locate(name)
    place, attribute = found.place, found.attribute
    if found.inside == "bank":
        return _from_bank(name, place, attribute)
    if found.inside == "library":
        return _from_library(name, place, attribute)
    module = _from_file(name, Path(place)) if found.inside == "file" else _from_path(name, place)
    candidate = getattr(module, attribute, None)
    if candidate is None:
        raise UnknownCandidate(f"candidate={name}: {place} has no attribute {attribute!r}")
    for part in ("name", "supports", "run"):
        if not hasattr(candidate, part):
            raise UnknownCandidate(
                f"candidate={name}: {attribute} lacks {part!r}; "
                "a candidate has a name, supports(case) and run(case, rank, emit)"
            )
    if isinstance(candidate, type) or not isinstance(candidate, Candidate):
        raise UnknownCandidate(f"candidate={name}: {attribute} is a class; name an instance of it")
    return candidate


def _from_bank(name: str, bank: str, key: str) -> Candidate:
    known: dict[str, Any] = importlib.import_module(BANKS[bank]).BANK
    if key not in known:
        raise not_in_bank(name, bank, key, known)
    candidate: Candidate = known[key].candidate
    return candidate


def _from_library(name: str, place: str, key: str) -> Candidate:
    library = libraries()[place]
    if key not in library.limits:
        raise not_in_bank(name, place, key, library.limits)
    return Published(name, library, key)


def home(name: str) -> str:
    """What the ranks of a candidate must run in: `verl@0.9.1`, or nothing in particular."""
    found = locate(name)
    if found.inside != "library":
        return ""
    return f"{found.place}@{found.version or libraries()[found.place].pinned}"


def interpreter(where: str) -> str:
    """The Python of a home."""
    if not where:
        return sys.executable
    name, _, version = where.partition("@")
    return Environment(libraries()[name], version).python


def _from_file(name: str, path: Path) -> ModuleType:
    # A name of its own per file: two files called candidate.py must not shadow each other.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    module_name = f"_candidate_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UnknownCandidate(f"candidate={name}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise UnknownCandidate(
            f"candidate={name}: {path} does not import: {type(error).__name__}: {error}"
        ) from error
    return module


def _from_path(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise UnknownCandidate(
            f"candidate={name}: module {place!r} does not import: {type(error).__name__}: {error}"
        ) from error
