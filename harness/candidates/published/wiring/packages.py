"""Ways into a package whose own imports need what is not installed: a GPU's kernels, a cluster."""

import ast
import importlib.util
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def bare_packages(*names: str) -> None:
    """Let modules of these packages be imported without what the packages themselves import.

    Each is put in place empty, with the true path: its modules are the published ones.
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
    """Where a package lies, without importing it or any of its parents."""
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


def lifted(path: Path, name: str, given: Mapping[str, Any]) -> Any:
    """One published function or method, word for word, out of a module that cannot be imported.

    `Class.method` gives the method. `given` are the names that its body takes from its module.
    """
    wanted = name.split(".")
    body: list[ast.stmt] = ast.parse(path.read_text(), str(path)).body
    node: ast.stmt | None = None
    for part in wanted:
        node = next((each for each in body if getattr(each, "name", None) == part), None)
        if node is None:
            raise AttributeError(f"{path} has no {name}")
        body = getattr(node, "body", [])
    namespace = dict(given)
    module = ast.Module([node] if node else [], [])
    exec(compile(module, str(path), "exec"), namespace)  # noqa: S102 - released code, as it is
    return namespace[wanted[-1]]
