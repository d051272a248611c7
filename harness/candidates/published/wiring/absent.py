"""Modules of services that a step does not need, and that are not there: adapters, data sets."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class OfNothing(type):
    """The class of such classes: each name in one is another."""

    def __getattr__(cls, name: str) -> Any:
        return nothing(name)


class Nothing(metaclass=OfNothing):
    """A class, a function or a decorator in the place of any other."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take whatever the other takes."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Return nothing, as a decorator that is called."""

    def __bool__(self) -> bool:
        """Answer that nothing is there."""
        return False


def nothing(name: str) -> Any:
    """Return a class of its own for a name, so that it is the class of no object."""
    if name.startswith("__"):
        raise AttributeError(name)
    return OfNothing(name, (Nothing,), {})


class Absent(ModuleType):
    """A module that is not there: each name is a class of its own."""

    def __getattr__(self, name: str) -> Any:
        made = nothing(name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that are not there, and all below them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not any(name == each or name.startswith(f"{each}.") for each in self.names):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """While this lasts, these modules can be imported, also where they are installed."""
    finder = Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, Absent)]:
            del sys.modules[name]
