"""What things are called in the script: as in their source, unless two are called alike."""

import ast
import builtins
from collections.abc import Iterable, Iterator
from itertools import count

from harness.failure.script.graph import Definition, External, Graph, Target
from harness.failure.script.module import Statement


def named(
    graph: Graph,
    statements: list[Statement],
    externals: Iterable[External],
    *,
    first: str,
    reserved: Iterable[str],
) -> dict[Target, str]:
    """A name for each, none of them reserved; what the module `first` defines chooses first."""
    targets: dict[Target, None] = {}
    for statement in sorted(statements, key=lambda s: s.module.name != first):
        for name in sorted(statement.touches):
            target = graph.resolve(statement.module, name)
            if isinstance(target, Definition):
                targets[target] = None
    targets |= dict.fromkeys(externals)
    names: dict[Target, str] = {}
    taken = {*dir(builtins), *reserved}
    for target in targets:
        wanted = target.name if isinstance(target, Definition) else target.alias
        if wanted in taken:
            used = {name for statement in statements for name in _identifiers(statement.node)}
            wanted = next(name for name in _others(target) if name not in taken | used)
        names[target] = wanted
        taken.add(wanted)
    return names


def _others(target: Target) -> Iterator[str]:
    """Names for what cannot have its own: that of its module in front, or a number behind."""
    name = target.name if isinstance(target, Definition) else target.alias
    module = target.module.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    if module != name:
        yield f"{module}_{name}"
    for number in count(2):
        yield f"{name}_{number}"


def _identifiers(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.Name():
                yield each.id
            case ast.arg():
                yield each.arg
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield each.name
