"""A definition as text: as it stands in its source, under the names of the script."""

import ast
import re
from collections.abc import Iterator, Mapping

from harness.failure.script.edits import Edit, edited
from harness.failure.script.graph import Definition, Graph, Target
from harness.failure.script.module import Imports, Part, Statement, beginning
from harness.failure.script.scope import all_arguments, bound
from harness.failure.script.trouble import CannotStandAlone

GAPS = re.compile(r"\n{3,}")
DEFINES = re.compile(rb"(?:async\s+def|def|class)\s+")


def text(graph: Graph, statement: Statement, names: Mapping[Target, str], parts: set[Part]) -> str:
    """The source of a statement, without the other parts, with everything under its name."""
    if isinstance(statement.node, Imports):
        return _prepared(graph, statement, statement.node, names)
    place = statement.module.place
    edits = list(_without(statement, parts))
    edits += [(place.line(a), place.line(b + 1), b"") for a, b in graph.dropped(statement)]
    edits += _named(graph, statement, names, parts)
    edits += _imports(graph, statement, names, parts)
    written = edited(place.source, edits, statement.start, statement.end).decode().rstrip()
    return GAPS.sub("\n\n", written) if statement.module.ours else written


def _prepared(
    graph: Graph, statement: Statement, node: Imports, names: Mapping[Target, str]
) -> str:
    """An import that stays where it is."""
    listed = []
    for alias in node.names:
        bound = alias.asname or alias.name.partition(".")[0]
        own = graph.resolve(statement.module, bound)
        final = names[own] if isinstance(own, Definition) else bound
        name = alias.name
        if not alias.asname and name != bound:
            # It loads a.b and binds a.
            listed.append(name)
            name = bound
        if final != bound or name == alias.name:
            listed.append(name if final == name else f"{name} as {final}")
    origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
    return f"{origin}import {', '.join(listed)}"


def _without(statement: Statement, parts: set[Part]) -> Iterator[Edit]:
    place = statement.module.place
    for part in statement.parts:
        if part not in parts:
            start = beginning(place, part.node)
            if place.source[:start].endswith(b"\n\n"):
                # The line between it and what stands before it.
                start -= 1
            yield start, place.line((part.node.end_lineno or 0) + 1), b""


def _named(
    graph: Graph, statement: Statement, names: Mapping[Target, str], parts: set[Part]
) -> Iterator[Edit]:
    module = statement.module
    for reference in graph.references(statement):
        if reference.part not in parts:
            continue
        use, final = reference.use, names[reference.target]
        last = use.ends[reference.depth - 1]
        start, end = (module.place.line(line) + column for line, column in (use.start, last))
        said = module.place.source[start:end].decode()
        if said == final:
            continue
        if said.partition(".")[0].partition("[")[0] != use.path[0]:
            # Python 3.11 does not know where exactly in an f-string a name stands.
            raise _in_the_way(statement, use.start[0], use.path[0], final, "is in an f-string")
        if final in _local(statement.node):
            raise _in_the_way(statement, use.start[0], said, final, "is a local name there")
        yield start, end, final.encode()
    node = statement.node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        own = graph.resolve(module, node.name)
        name = names[own] if isinstance(own, Definition) else node.name
        if name != node.name:
            found = DEFINES.match(module.place.source, module.place.start(node))
            assert found, "a definition begins with what it defines"
            yield found.end(), found.end() + len(node.name.encode()), name.encode()


def _imports(
    graph: Graph, statement: Statement, names: Mapping[Target, str], parts: set[Part]
) -> Iterator[Edit]:
    """Imports from us within a function become assignments, or nothing."""
    assigned: dict[Imports, list[str]] = {}
    for late in graph.late(statement):
        if late.part in parts:
            lines = assigned.setdefault(late.node, [])
            if late.alias != names[late.target]:
                lines.append(f"{late.alias} = {names[late.target]}")
    place = statement.module.place
    for node, lines in assigned.items():
        yield place.start(node), place.end(node), "; ".join(lines or ["pass"]).encode()


def _local(node: ast.AST) -> set[str]:
    """Every name that is local to some function within."""
    names: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names |= bound([each.body] if isinstance(each, ast.Lambda) else each.body)
            names |= {argument.arg for argument in all_arguments(each.args)}
    return names


def _in_the_way(
    statement: Statement, line: int, said: str, final: str, why: str
) -> CannotStandAlone:
    return CannotStandAlone(
        f"{statement.module.path}:{line}: {said} has to be called {final} in a single file, "
        f"which {why}; give one of them another name"
    )
