"""From a candidate's name to the source that defines it, without running any of it."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.candidates.published.environment import Environment
from harness.candidates.published.library import libraries
from harness.candidates.registry import BANKS, Place, UnknownCandidate, locate, not_in_bank
from harness.failure.script.graph import Definition, External, Graph, Target, source_of
from harness.failure.script.module import USUAL, Module, is_ours

REGISTER = ("mutant", "benign")


@dataclass(frozen=True, slots=True)
class Root:
    """What a script has to bring along for a candidate, and how it gets at it."""

    target: Target
    # Whether it is a class, of which the candidate is an instance.
    made: bool = False
    # What of it is called: a candidate's method, or what a library's table has under a key.
    call: str = ".run"
    # What has to be installed besides torch and numpy.
    pins: tuple[str, ...] = ()
    # Imported for what importing them does.
    others: tuple[External, ...] = ()


def root(graph: Graph, name: str) -> Root:
    """Where a candidate comes from; the names are those that the command line takes."""
    located = locate(name)
    place, attribute = located.place, located.attribute
    if located.inside == "bank":
        return _from_bank(name, place, attribute)
    if located.inside == "library":
        return _from_library(graph, name, located)
    if located.inside == "file":
        path = Path(place).resolve()
        return _from_module(graph, name, graph.module(str(path), path), attribute)
    if is_ours(place):
        if source_of(place) is None:
            raise UnknownCandidate(f"candidate={name}: there is no module {place}")
        return _from_module(graph, name, graph.module(place), attribute)
    if importlib.util.find_spec(place.partition(".")[0]) is None:
        raise UnknownCandidate(f"candidate={name}: module {place!r} is not installed")
    return Root(External(place, attribute, attribute))


def _from_module(graph: Graph, name: str, module: Module, attribute: str) -> Root:
    target = graph.resolve(module, attribute)
    if not isinstance(target, Definition | External):
        raise UnknownCandidate(f"candidate={name}: {module.path} has no attribute {attribute!r}")
    if isinstance(target, Definition):
        defining = graph.module(target.module).touching[target.name]
        if any(isinstance(statement.node, ast.ClassDef) for statement in defining):
            raise UnknownCandidate(
                f"candidate={name}: {attribute} is a class; name an instance of it"
            )
    foreign = () if module.ours else tuple(_foreign(graph, module))
    return Root(target, others=foreign)


def _foreign(graph: Graph, module: Module) -> Iterator[External]:
    """The library under test may be imported for what its import does."""
    for alias in sorted(module.at_once):
        target = graph.imported(module.imports[alias], alias)
        usual = {*USUAL, *sys.stdlib_module_names}
        if isinstance(target, External) and target.module.partition(".")[0] not in usual:
            yield target


def _from_library(graph: Graph, name: str, located: Place) -> Root:
    library = libraries()[located.place]
    key = located.attribute
    if key not in library.limits:
        raise not_in_bank(name, located.place, key, library.limits)
    place = f"{library.module}.candidate"
    module = graph.module(place, library.folder / "candidate.py")
    table = Definition(module.name, "STEPS")
    pins = Environment(library, located.version or library.pinned).requirements
    chosen = graph.chosen(table, f"[{key!r}]")
    if chosen:
        return Root(chosen, call="", pins=pins)
    return Root(table, call=f"[{key!r}]", pins=pins)


def _from_bank(name: str, bank: str, key: str) -> Root:
    known = _registered_in(bank)
    if key not in known:
        raise not_in_bank(name, bank, key, known)
    return Root(known[key], made=True)


@cache
def _registered_in(bank: str) -> dict[str, Definition]:
    known: dict[str, Definition] = {}
    for path in sorted((source_of(BANKS[bank]) or Path()).parent.glob("*.py")):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef):
                place = Definition(f"{BANKS[bank]}.{path.stem}", node.name)
                known |= dict.fromkeys(_registered(node), place)
    return known


def _registered(node: ast.ClassDef) -> Iterator[str]:
    """The key under which a class is put into its bank."""
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(ast.Name(name), [ast.Constant(str(key)), *_]) if name in REGISTER:
                yield key
