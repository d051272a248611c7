"""Ways into a package whose own imports need what is not installed: a GPU's kernels, a cluster."""

import ast
import importlib.util
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

# Names that nearly every module imports; lifted code is given them in any case.
_USUAL: Mapping[str, Any] = {
    "torch": torch,
    **{name: getattr(typing, name) for name in ("Any", "Callable", "Dict", "List", "Optional")},
    **{name: getattr(typing, name) for name in ("Tuple", "Type", "TYPE_CHECKING", "Union")},
}


def bare_packages(*names: str) -> None:
    """Let modules of these packages be imported without what the packages themselves import.

    Each package becomes an empty module with the true path, so its modules are the published ones.
    """
    for name in names:
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = [str(folder(name))]
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)


def folder(name: str) -> Path:
    """Return the folder of a package without importing it or any of its parents."""
    top, *below = name.split(".")
    spec = importlib.util.find_spec(top) if top not in sys.modules else None
    places = (
        spec.submodule_search_locations
        if spec and spec.submodule_search_locations
        else sys.modules[top].__path__
        if top in sys.modules
        else None
    )
    if not places:
        raise ModuleNotFoundError(f"No module named {top!r}")
    return Path(next(iter(places)), *below)


def lifted(path: Path, name: str, given: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
    """Return one published function, word for word, out of a module that cannot be imported.

    `Class.method` names a method. `given` has the names that its body takes from its module, but
    for torch and the usual ones of typing.
    """
    wanted = name.split(".")
    body: list[ast.stmt] = ast.parse(path.read_text(), str(path)).body
    node: ast.stmt | None = None
    for part in wanted:
        node = next((each for each in body if getattr(each, "name", None) == part), None)
        if node is None:
            raise AttributeError(f"{path} has no {name}")
        body = getattr(node, "body", [])
    namespace = {**_USUAL, **given}
    module = ast.Module([node] if node else [], [])
    exec(compile(module, str(path), "exec"), namespace)  # noqa: S102 - released code, as it is
    return namespace[wanted[-1]]
