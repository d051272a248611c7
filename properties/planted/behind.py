"""The steps of a published library with one more bug, hidden behind those that are listed.

`make` writes a package that wires these steps, as a user's own package would.
"""

import sys
from pathlib import Path

from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Library

NAME = "behind"
# The last norm of our own model, and of a transformers model; no listed bug affects it alone.
PLANTED = ("grad.norm", "grad.model.norm.weight")

CANDIDATE = """
from functools import partial

from {module}.candidate import STEPS as RELEASED


def step(released, case, rank, emit):
    def planted(key, tensor, tokens=None):
        emit(key, tensor + 1 if key in {planted} else tensor, tokens)

    released(case, rank, planted)


STEPS = {{key: partial(step, released) for key, released in RELEASED.items()}}
"""

RECIPES = """
from {module}.recipes import RECIPES

__all__ = ["RECIPES"]
"""


def make(folder: Path, library: Library) -> Path:
    """Write the package, and return the folder to import it from."""
    package = folder / "outside" / NAME
    package.mkdir(parents=True)
    for name in ("requirements.txt", "known.toml"):
        (package / name).write_text((library.folder / name).read_text())
    if library.recipes:
        (package / "recipes.py").write_text(RECIPES.format(module=library.module))
    for name, text in {
        "__init__.py": "",
        "limits.py": f"from {library.module}.limits import LIMITS\n\n__all__ = ['LIMITS']\n",
        "mends.py": f"from {library.module}.mends import MENDS\n\n__all__ = ['MENDS']\n",
        "candidate.py": CANDIDATE.format(module=library.module, planted=PLANTED),
    }.items():
        (package / name).write_text(text)
    facts = folder / "outside" / f"{NAME}-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[harness.candidates]\n{NAME} = {NAME}\n")
    return folder / "outside"


def forget() -> None:
    """Unload the package, since that of the next library has the same name."""
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def at_home(folder: Path, library: Library, planted: Library) -> Path:
    """Make a folder in which both packages have the environment of the library."""
    environment = Environment(library, library.pinned).folder
    environments = folder / "environments"
    environments.mkdir()
    for name in (environment.name, Environment(planted, planted.pinned).folder.name):
        (environments / name).symlink_to(environment)
    return environments
