"""Imports from the folder of a candidate: its ranks import from there first.

So a candidate's `import step` takes the `step.py` beside it. If a module of that name was imported
before from elsewhere, the candidate would run with the wrong one; `require_own` finds this.
"""

import sys
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType


class FromElsewhere(RuntimeError):
    """A module in the candidate's folder is shadowed by another; the message names both files."""


@cache
def put_first(folder: str) -> None:
    """Make this process import from the folder first; it then serves no other folder."""
    if folder:
        sys.path.insert(0, folder)


def require_own(folder: str) -> None:
    """Raise `FromElsewhere` if a module of the folder is imported from a file elsewhere."""
    for name, own_file in held(folder).items():
        if name not in sys.modules:
            continue
        imported = _source_of(sys.modules[name])
        if imported != own_file and Path(imported).resolve() != Path(own_file).resolve():
            raise FromElsewhere(
                f"{own_file} lies beside the candidate, and `import {name}` gives {imported} "
                "instead, which was imported before; rename the former, or move the candidate to "
                "a folder without it"
            )


@cache
def held(folder: str) -> dict[str, str]:
    """Map each module that Python finds in a folder to its file, without importing any."""
    if not folder:
        return {}
    names = {module.name for module in iter_modules([folder])} - {"__main__"}
    specs = {name: PathFinder.find_spec(name, [folder]) for name in sorted(names)}
    return {name: spec.origin for name, spec in specs.items() if spec and spec.origin}


def _source_of(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "what is built into Python")
