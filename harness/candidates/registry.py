"""Find a candidate, or a recipe that one is compared with, by its name.

`locate` reads a name and loads nothing; `Named.load` imports what it names. A candidate has a name
such as `native-local`, `mutants.B14`, `verl.attention@0.9.1`, `path/to/file.py:NAME` or
`package.module:NAME`; a recipe has one of the last two forms.
"""

import difflib
import hashlib
import importlib
import importlib.util
import shlex
import sys
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import harness
from harness.against import ITSELF, PLAIN, names_recipe
from harness.candidates.protocol import Candidate, PlainTraining
from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Library, Published, libraries
from harness.candidates.slow_imports import SLOW, slow_imports
from harness.untrusted import BadInput

Role = Literal["candidate", "against"]

BUILT_IN = {
    "native-gather": "harness.candidates.own.native:GATHER",
    "native-local": "harness.candidates.own.native:LOCAL",
}

# The package of right steps on shards, whose name is followed by a family and a loss.
SHARES = "harness.candidates.own.shares"

# What an object must have to be what a name stands for, and the same in words.
PARTS = {
    "candidate": (
        ("name", "supports", "run"),
        "a candidate has a name, supports(case) and run(case, rank, emit)",
    ),
    "against": (("run_plain",), "name a Recipe, or a function below @step(recipe)"),
}

# The module that fills each bank: `mutants.B14` is the entry B14 of its `BANK`.
BANKS = {"mutants": "harness.candidates.own.mutants", "benign": "harness.candidates.own.benign"}


class UnknownCandidate(BadInput):
    """The name leads to no candidate; the message describes where the search ended."""


# Asked many times with every case, and each time it would look at every folder of the path.
@lru_cache(maxsize=64)
def _resolved(place: str, folder: Path) -> Path:
    return (folder / place).resolve()


@dataclass(frozen=True, slots=True)
class Named:
    """A candidate's name, taken apart: where the candidate is, and what its ranks need."""

    name: str
    inside: Literal["bank", "library", "file", "module"]
    # The bank, the library, the path of the file or the name of the module.
    place: str
    attribute: str
    # Only a library has one: the pinned release, unless the name has another.
    environment: Environment | None = None
    # What it is: a candidate, or a recipe that a candidate is compared with.
    role: Role = "candidate"

    @property
    def full(self) -> str:
        """The name with an absolute path, so that ranks in other folders find the same file."""
        if self.inside != "file":
            return self.name
        return f"{_resolved(self.place, Path.cwd())}:{self.attribute}"

    @property
    def is_foreign(self) -> bool:
        """Whether its code comes neither with the harness nor with an installed library.

        Then only ranks may run it, since it may end its process or never return.
        """
        return self.name not in BUILT_IN and self.inside in ("file", "module")

    @property
    def folder(self) -> str:
        """The folder that its ranks import from first, or "" if it is installed.

        This is the folder of its file, or the current folder if its package lies there.
        """
        if self.inside == "file":
            return str(_resolved(self.place, Path.cwd()).parent)
        current, package = str(Path.cwd()), self.place.partition(".")[0]
        if not self.is_foreign or package == harness.__name__:
            return ""
        return current if PathFinder.find_spec(package, [current]) else ""

    @property
    def slow_imports(self) -> tuple[str, ...]:
        """The modules that it imports and that take long; see `slow_imports`."""
        if self.inside == "bank" and hasattr(self.load(), "recipe"):
            return (SLOW["transformers"],)
        if self.place == SHARES:
            return (SLOW["transformers"],)
        if not self.folder:
            return ()
        if self.inside == "file":
            return slow_imports(Path(self.place))
        return slow_imports(Path(self.folder, *self.place.split(".")).with_suffix(".py"))

    @property
    def home(self) -> str:
        """The environment that its ranks must run in, as in `verl@0.9.1`, or "" for this one."""
        return f"{self.place}@{self.environment.version}" if self.environment else ""

    def load(self) -> Candidate:
        """Import and return the candidate; raise `UnknownCandidate` if there is none."""
        if self.inside == "bank":
            return _from_bank(self)
        if self.environment:
            return _from_library(self, self.environment.library)
        candidate: Candidate = self._import()
        return candidate

    def load_recipe(self) -> PlainTraining:
        """Import and return a recipe, or a step with one; raise `UnknownCandidate` otherwise."""
        recipe: Any = self.load() if self.inside in ("bank", "library") else self._import()
        return recipe  # type: ignore[no-any-return]

    def _import(self) -> Any:
        module = _from_file(self) if self.inside == "file" else _from_path(self)
        found = getattr(module, self.attribute, None)
        parts, words = PARTS[self.role]
        if found is None:
            fitting = [name for name in vars(module) if hasattr(vars(module)[name], parts[-1])]
            near = ", ".join(difflib.get_close_matches(self.attribute, fitting, 3, 0.0))
            raise UnknownCandidate(
                f"{self.role}={self.name}: {self.place} has no attribute {self.attribute!r}"
                + (f"; near: {near}" if near else "")
            )
        for part in parts:
            if not hasattr(found, part):
                raise UnknownCandidate(
                    f"{self.role}={self.name}: {self.attribute} lacks {part!r}; {words}"
                )
        if isinstance(found, type):
            raise UnknownCandidate(
                f"{self.role}={self.name}: {self.attribute} is a class; name an instance of it"
            )
        return found


def locate(name: str) -> Named:
    """Read a candidate's name without importing the candidate.

    Raise `UnknownCandidate` if it has no known form, or if its file does not exist.
    """
    bank, dot, key = name.partition(".")
    if dot and bank in BANKS and ":" not in key:
        return Named(name, "bank", bank, key)
    if dot and ":" not in key and bank in libraries():
        key, _, version = key.partition("@")
        library = libraries()[bank]
        environment = Environment(library, version or library.pinned)
        return Named(name, "library", bank, key, environment)
    place, colon, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not colon:
        raise UnknownCandidate(
            f"candidate={name}: not built in; use {', '.join(BUILT_IN)}, one of those that "
            "`candidates list` names, path/to/file.py:NAME or package.module:NAME"
        )
    return _outside(name, place, attribute, "candidate")


def require_reference(name: str) -> str:
    """Return a reference if a user can ask for it; raise `UnknownCandidate` otherwise."""
    return name if name in (PLAIN, ITSELF) else locate_recipe(name).name


def locate_recipe(name: str) -> Named:
    """Read a recipe's name without importing it; raise `UnknownCandidate` as `locate` does."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UnknownCandidate(
            f"against={name}: use plain, self, path/to/file.py:RECIPE or package.module:RECIPE"
        )
    return _outside(name, place, attribute, "against")


def _outside(name: str, place: str, attribute: str, role: Role) -> Named:
    if not place.endswith(".py"):
        return Named(name, "module", place, attribute, role=role)
    file = Path(place)
    if not file.is_file():
        raise UnknownCandidate(f"{role}={name}: there is no file {place}")
    if error := _syntax_error(file.resolve(), file.stat().st_mtime_ns):
        raise UnknownCandidate(f"{role}={name}: {place} does not import: {error}")
    return Named(name, "file", place, attribute, role=role)


# Asked with every case. A user who waits for ranks to start need not wait for this.
@lru_cache(maxsize=64)
def _syntax_error(file: Path, _changed: int) -> str:
    """Return what is wrong with the syntax of a file, without running it; empty if nothing is."""
    try:
        with warnings.catch_warnings(action="ignore"):
            # Python names the file in its message.
            compile(file.read_bytes(), file.name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"
    return ""


def require_trusted(name: str, source: str, typed: Collection[str] = ()) -> str:
    """Return a name that was read from a document, if its code may run.

    Code that comes with the harness or with an installed library may. A file or a module may have
    come from a stranger together with the document, so the user must have typed its name as well.
    """
    if name in typed or not locate(name).is_foreign:
        return name
    raise UnknownCandidate(
        f"{source}: its candidate is {name}, whose code is not run unasked; if you trust it, add "
        f"--candidate {shlex.quote(name)}"
    )


def require_trusted_reference(against: str, source: str, typed: str | None = None) -> str:
    """Return a reference that was read from a document, if it runs no code that is not trusted."""
    if against == typed or not names_recipe(against):
        return against
    raise UnknownCandidate(
        f"{source}: it is compared with {against}, whose code is not run unasked; if you trust "
        f"it, add --against {shlex.quote(against)}"
    )


def _unknown_entry(named: Named, known: Iterable[str]) -> UnknownCandidate:
    """Make the error for a key that a bank or a library does not have."""
    near = ", ".join(difflib.get_close_matches(named.attribute, known, 3, 0.0))
    return UnknownCandidate(
        f"candidate={named.name}: there is no {named.attribute} in {named.place}; near: {near}"
    )


def _from_bank(named: Named) -> Candidate:
    known: dict[str, Any] = importlib.import_module(BANKS[named.place]).BANK
    if named.attribute not in known:
        raise _unknown_entry(named, known)
    candidate: Candidate = known[named.attribute].candidate
    return candidate


def _from_library(named: Named, library: Library) -> Candidate:
    key, *mended = named.attribute.split("+")
    if key not in library.limits:
        raise _unknown_entry(named, library.limits)
    for bug in mended:
        if bug not in library.mends:
            raise UnknownCandidate(
                f"candidate={named.name}: {library.name} has no mend of {bug}; it has "
                f"{', '.join(library.mends) or 'none'}"
            )
    return Published(named.name, library, key, tuple(mended))


def interpreter(where: str) -> str:
    """Return the Python of a home as `Named.home` has it."""
    if not where:
        return sys.executable
    name, _, version = where.partition("@")
    return Environment(libraries()[name], version).python


def _from_file(named: Named) -> ModuleType:
    name, path = named.name, Path(named.place)
    # Each file gets its own module name, so that two called candidate.py do not clash.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    module_name = f"_candidate_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UnknownCandidate(f"{named.role}={name}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise UnknownCandidate(
            f"{named.role}={name}: {path} does not import: {type(error).__name__}: {error}"
        ) from error
    return module


def _from_path(named: Named) -> ModuleType:
    try:
        return importlib.import_module(named.place)
    except (Exception, SystemExit) as error:
        raise UnknownCandidate(
            f"{named.role}={named.name}: module {named.place!r} does not import: "
            f"{type(error).__name__}: {error}"
        ) from error
