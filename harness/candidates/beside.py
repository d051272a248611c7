"""What lies beside a candidate: its ranks import that first, and nothing of another folder's."""

import sys
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType


class FromElsewhere(RuntimeError):
    """A module that lies beside the candidate came from elsewhere; the message has both files."""


@cache
def put_first(folder: str) -> None:
    """Have this process import from the folder first; it serves the candidates of no other."""
    if folder:
        sys.path.insert(0, folder)


def require_own(folder: str) -> None:
    """Raise `FromElsewhere` for a module that the folder holds and that is another file's here."""
    for name, ours in held(folder).items():
        if name not in sys.modules:
            continue
        theirs = _file_of(sys.modules[name])
        if theirs != ours and Path(theirs).resolve() != Path(ours).resolve():
            raise FromElsewhere(
                f"{ours} lies beside the candidate, and `import {name}` gives {theirs} instead, "
                "which was imported before; rename the former, or move the candidate to a folder "
                "without it"
            )


@cache
def held(folder: str) -> dict[str, str]:
    """The modules that Python finds in a folder, and the file of each; no part of any is run."""
    if not folder:
        return {}
    names = {each.name for each in iter_modules([folder])} - {"__main__"}
    specs = {name: PathFinder.find_spec(name, [folder]) for name in sorted(names)}
    return {name: spec.origin for name, spec in specs.items() if spec and spec.origin}


def _file_of(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "what is built into Python")
