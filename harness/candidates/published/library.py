"""Find published libraries: one folder for each, here or in another installed package.

    candidate.py      STEPS: by key, a step(case, rank, emit); only ranks import it
    limits.py         LIMITS: by key, a function of a case that returns why it cannot run, or None.
                      STATED: by key, limits of single fields, such as "dtype=fp32" or "ranks=all";
                      only cases within them are drawn
    recipes.py        RECIPES: by key, the recipe of a step that plain training of it judges, and
                      not our own model; it does not import the library
    known.toml        the bugs that are known upstream
    options.toml      what of a user's configuration each entry stands for; a library that is
                      configured by code has none
    mends.py          MENDS: by key of known.toml, a context manager without that bug; it imports
                      the library inside, because only ranks have it
    requirements.txt  the pinned packages of its ranks; the first line is the library itself. A
                      line python==3.12 is the Python that this release needs
    README.md         how it is wired

`verl.attention` is the entry `attention` of the folder `verl`, and `verl.attention@0.5.0` that of
another release; `deepspeed.alst+window-dropped` is an entry with one listed bug mended.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.candidates.protocol import Emit, Rank
from harness.case import Case
from harness.importing import without_a_search_for_garbage
from harness.untrusted import BadInput

if TYPE_CHECKING:
    from harness.recipes import Recipe

GROUP = "harness.candidates"

Limit = Callable[[Case], str | None]
Step = Callable[[Case, Rank, Emit], None]
# While the context lasts, a rank's released code is without one bug.
Mend = Callable[[], AbstractContextManager[Any]]

# How a line begins that is no package.
PYTHON = "python=="
_PYTHON = re.compile(rf"{PYTHON}3\.\d+")
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)")


class BadFolder(BadInput):
    """A folder lacks something that every published candidate needs."""


@dataclass(frozen=True, slots=True)
class Library:
    """One published package under test."""

    name: str
    # The package of its wiring.
    module: str
    folder: Path

    @property
    def requirements(self) -> tuple[str, ...]:
        """The exact pins of its ranks' packages; the library comes first."""
        return tuple(pin for pin in self._pins if not pin.startswith(PYTHON))

    @property
    def python(self) -> str:
        """The Python that the pinned release needs, as in 3.12; empty for the harness's own."""
        found = [pin.removeprefix(PYTHON) for pin in self._pins if pin.startswith(PYTHON)]
        return found[0] if found else ""

    @property
    def _pins(self) -> tuple[str, ...]:
        path = self.folder / "requirements.txt"
        if not path.is_file():
            raise BadFolder(f"candidate={self.name}: {self.folder} has no requirements.txt")
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
        pins = tuple(line for line in lines if line)
        for pin in pins or ("",):
            if not _PIN.fullmatch(pin):
                raise BadFolder(f"{path}: {pin!r} is not an exact pin, NAME==VERSION")
            if pin.startswith(PYTHON) and not _PYTHON.fullmatch(pin):
                raise BadFolder(f"{path}: {pin!r} is not a Python as in {PYTHON}3.12")
        return pins

    @property
    def distribution(self) -> str:
        """The library's name on the package index."""
        return self.requirements[0].partition("==")[0]

    @property
    def pinned(self) -> str:
        """The version under test, unless a candidate's name has another one."""
        return self.requirements[0].partition("==")[2]

    @property
    def limits(self) -> Mapping[str, Limit]:
        limits: Mapping[str, Limit] = importlib.import_module(f"{self.module}.limits").LIMITS
        return limits

    @property
    def stated(self) -> Mapping[str, str]:
        """By key, the limits that can be stated as values of single fields of a case."""
        module = importlib.import_module(f"{self.module}.limits")
        stated: Mapping[str, str] = getattr(module, "STATED", {})
        return stated

    @property
    def recipes(self) -> Mapping[str, "Recipe"]:
        """By key, what plain training is for a step that does not train our own model."""
        if not (self.folder / "recipes.py").is_file():
            return {}
        recipes: Mapping[str, Recipe] = importlib.import_module(f"{self.module}.recipes").RECIPES
        return recipes

    @property
    def mends(self) -> Mapping[str, Mend]:
        """By the key of a bug, a context manager that runs the pinned release without it."""
        if not (self.folder / "mends.py").is_file():
            return {}
        mends: Mapping[str, Mend] = importlib.import_module(f"{self.module}.mends").MENDS
        return mends

    @property
    def steps(self) -> Mapping[str, Step]:
        """The library's steps by key; only its ranks can import these."""
        with without_a_search_for_garbage():
            module = importlib.import_module(f"{self.module}.candidate")
        steps: Mapping[str, Step] = module.STEPS
        return steps


@cache
def libraries() -> dict[str, Library]:
    """Return every library by name: folders beside this file, then those of other packages."""
    siblings = Path(__file__).parent
    found = {
        pins.parent.name: Library(
            pins.parent.name, f"{__package__}.{pins.parent.name}", pins.parent
        )
        for pins in sorted(siblings.glob("*/requirements.txt"))
    }
    for entry in entry_points(group=GROUP):
        spec = importlib.util.find_spec(entry.module)
        if spec is None or not spec.submodule_search_locations:
            raise BadFolder(f"candidate={entry.name}: {entry.module} is not an installed package")
        if entry.name in found:
            raise BadFolder(f"candidate={entry.name}: {entry.module} has the name of another")
        folder = Path(spec.submodule_search_locations[0])
        found[entry.name] = Library(entry.name, entry.module, folder)
    return found


@dataclass(slots=True)
class Published:
    """One step of a library as a candidate: only `run` needs the library, and so its ranks."""

    name: str
    library: Library
    key: str
    # The keys of listed bugs without which it runs.
    mended: tuple[str, ...] = ()

    @property
    def limits(self) -> str:
        return self.library.stated.get(self.key, "")

    @property
    def hypotheses(self) -> Mapping[str, object]:
        """What can be wrong with a step of its recipe; empty if it has none."""
        recipe = self.library.recipes.get(self.key)
        return recipe.hypotheses if recipe else {}

    def supports(self, case: Case) -> str | None:
        # Only a shrunk case has plain columns; for others the recipes need not be imported.
        recipe = self.library.recipes.get(self.key) if case.columns != "drawn" else None
        reason = recipe.refuses(case) if recipe else None
        return reason or self.library.limits[self.key](case)

    def run_plain(
        self, case: Case, rank: Rank, emit: Emit, variant: str, *, exactly: bool
    ) -> None:
        """Train as its recipe says."""
        self.library.recipes[self.key].run_plain(case, rank, emit, variant, exactly=exactly)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        step = self.library.steps[self.key]
        with ExitStack() as mends:
            for key in self.mended:
                mends.enter_context(self.library.mends[key]())
            step(case, rank, emit)
