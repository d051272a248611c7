"""A module as its source has it: imports, and statements that define names."""

import ast
import sys
import tokenize
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from harness.failure.script.edits import Place
from harness.failure.script.scope import Use, bound, uses
from harness.failure.script.trouble import CannotStandAlone

PACKAGE = Path(__file__).resolve().parents[2]
OURS = PACKAGE.name
# Beside the modules of a published library's folder, and of no other.
REQUIREMENTS = "requirements.txt"
# What everybody imports, and nobody prepares for.
USUAL = ("numpy", "torch", "transformers")

Imports = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Import:
    """What a bound name stands for: a module, or an attribute of one."""

    module: str
    attribute: str = ""
    # Of `import a.b`, which binds a: what has to be loaded for its attributes to be there.
    loads: frozenset[str] = frozenset()


@dataclass(eq=False)
class Part:
    """A member of a class that may be left out, or what remains of a statement without those."""

    statement: "Statement"
    node: ast.stmt
    member: str = ""

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Everything in it that is in no other part."""
        others = [part.node for part in self.statement.parts if part is not self and part.member]
        waiting: list[ast.AST] = [self.node]
        found = []
        while waiting:
            node = waiting.pop()
            found.append(node)
            waiting += [n for n in ast.iter_child_nodes(node) if self.member or n not in others]
        return found

    @cached_property
    def late(self) -> list[Imports]:
        """Imports that wait in a function or behind a condition."""
        return [node for node in self.nodes if isinstance(node, Imports)]

    @cached_property
    def mentions(self) -> frozenset[str]:
        """Attributes that it asks anything for, and names of arguments; `super.a` of a base."""
        names: set[str] = set()
        for node in self.nodes:
            match node:
                case ast.keyword(arg=str(name)):
                    names.add(name)
                case ast.Constant(value=str(name)) if not self.statement.module.ours:
                    # It may be an attribute for `getattr`.
                    names |= {name, f"super.{name}"}
                case ast.Attribute(ast.Call(ast.Name("super")), name):
                    names.add(f"super.{name}")
                case ast.Attribute(ast.Name(of), name) if of[0].isupper():
                    names |= {name, f"super.{name}"}
                case ast.Attribute(attr=name):
                    names.add(name)
        return frozenset(names)


@dataclass(eq=False)
class Statement:
    """One statement at the top of a module."""

    module: "Module"
    node: ast.stmt

    @cached_property
    def touches(self) -> frozenset[str]:
        """Names that it binds or changes."""
        return bound([self.node]) | changed(self.node)

    @cached_property
    def parts(self) -> list[Part]:
        """What is needed in any case, and, of a class of ours, each member that may not be."""
        members = []
        if isinstance(self.node, ast.ClassDef) and self.module.ours and not self.module.wires:
            by_keyword = any("kw_only=True" in ast.unparse(d) for d in self.node.decorator_list)
            for node in self.node.body:
                if isinstance(node, Function) and _ordinary(node):
                    members.append(Part(self, node, node.name))
                elif isinstance(node, ast.AnnAssign) and by_keyword:
                    members.append(Part(self, node, ast.unparse(node.target)))
        return [Part(self, self.node), *members]

    @cached_property
    def uses(self) -> list[tuple[Part, Use]]:
        """What it uses, and which part of it does."""
        owner = {id(node): part for part in self.parts for node in part.nodes}
        return [(owner[id(node)], use) for node, use in uses(self.node)]

    @property
    def start(self) -> int:
        """The byte at which it begins, with decorators and the comment right above it."""
        return beginning(self.module.place, self.node)

    @property
    def end(self) -> int:
        """The byte behind its last line."""
        return self.module.place.line((self.node.end_lineno or 0) + 1)


class Module:
    """A file of ours, or a user's."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self.name, self.path, self.place = name, path, Place(source.encode())
        self.imports: dict[str, Import] = {}
        # Those of them that are not for the type checker only.
        self.at_once: set[str] = set()
        self.annotations_wait = False
        self.statements: list[Statement] = []
        for node in ast.parse(source).body:
            self._take(node)

    @classmethod
    def read(cls, name: str, path: Path) -> "Module":
        """Somebody else's file, in whatever encoding."""
        try:
            with tokenize.open(path) as file:
                return cls(name, path, file.read())
        except SyntaxError as error:
            raise CannotStandAlone(f"{path}:{error.lineno}: {error.msg}") from error

    @property
    def ours(self) -> bool:
        return is_ours(self.name)

    @cached_property
    def wires(self) -> bool:
        """Whether a library calls what is in it, by names that no source of ours mentions."""
        return self.path.with_name(REQUIREMENTS).exists()

    @cached_property
    def touching(self) -> dict[str, list[Statement]]:
        """By name the statements that make it what it is."""
        table: dict[str, list[Statement]] = {}
        for statement in self.statements:
            for name in statement.touches:
                table.setdefault(name, []).append(statement)
        return table

    @property
    def effects(self) -> list[Statement]:
        """Statements that do more than to give a name to something."""
        plain = Function | ast.ClassDef | ast.Assign | ast.AnnAssign
        return [s for s in self.statements if not isinstance(s.node, plain) or changed(s.node)]

    def _take(self, node: ast.stmt, *, for_checkers: bool = False) -> None:
        match node:
            case ast.ImportFrom(module="__future__"):
                self.annotations_wait = True
            case ast.Import() | ast.ImportFrom() if not for_checkers and self._is_prepared(node):
                self.statements.append(Statement(self, node))
            case ast.Import() | ast.ImportFrom():
                for name, new in bindings(self, node):
                    old = self.imports.get(name, new)
                    same = (old.module, old.attribute) == (new.module, new.attribute)
                    both = replace(new, loads=old.loads | new.loads)
                    self.imports[name] = both if same else new
                    self.at_once |= set() if for_checkers else {name}
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for each in node.body:
                    self._take(each, for_checkers=True)
            case ast.If(test=ast.Compare(left=ast.Name("__name__"))):
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                self.statements.append(Statement(self, node))

    def _is_prepared(self, node: Imports) -> bool:
        """Whether something may have to be done before; then it stays where it is."""
        tops = {what.module.partition(".")[0] for _, what in bindings(self, node)}
        if tops <= {OURS, *USUAL, *sys.stdlib_module_names}:
            return False
        return self.wires or any(isinstance(s.node, ast.Expr) for s in self.statements)


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == OURS


def beginning(place: Place, node: ast.stmt) -> int:
    """The byte at which a definition begins, with decorators and the comment right above it."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return place.above(min([node.lineno, *(each.lineno for each in decorators)]))


def bindings(module: Module, node: Imports) -> list[tuple[str, Import]]:
    """The names that an import binds, and to what."""
    if isinstance(node, ast.Import):
        return [_module_bound(alias) for alias in node.names]
    if node.level or not node.module:
        raise CannotStandAlone(
            f"{module.path}:{node.lineno}: a relative import leads nowhere from a single file; "
            "import by the full name"
        )
    if any(alias.name == "*" for alias in node.names):
        raise CannotStandAlone(
            f"{module.path}:{node.lineno}: from {node.module} import *: name what is imported"
        )
    return [(alias.asname or alias.name, Import(node.module, alias.name)) for alias in node.names]


def changed(node: ast.stmt) -> set[str]:
    """Names of what is changed by assigning to an item or an attribute of it."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    names = set()
    for target in targets:
        at = target
        while isinstance(at, ast.Attribute | ast.Subscript):
            at = at.value
        if isinstance(at, ast.Name) and at is not target:
            names.add(at.id)
    return names


def _module_bound(alias: ast.alias) -> tuple[str, Import]:
    parent, _, last = alias.name.rpartition(".")
    if not alias.asname:
        first = alias.name.partition(".")[0]
        return first, Import(first, loads=frozenset({alias.name}))
    return alias.asname, Import(parent, last) if parent else Import(last)


def _ordinary(node: Function) -> bool:
    """Whether it is called by nobody but who names it."""
    return node.name not in ("forward", "backward") and not node.name.startswith("__")
