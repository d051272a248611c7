"""What a definition needs, through every import, down to what comes from outside."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.case import Case
from harness.failure.script.module import (
    PACKAGE,
    Import,
    Imports,
    Module,
    Part,
    Statement,
    bindings,
    is_ours,
)
from harness.failure.script.scope import Use
from harness.failure.script.trouble import CannotStandAlone

INSIDE = "harness.failure.script.inside"
# A script has no use for what these can do besides.
STAND_INS = {
    ("harness.case.case", "Case"): f"{INSIDE}.batch",
    ("harness.case.row", "Row"): f"{INSIDE}.batch",
    ("harness.trace.trace", "Trace"): f"{INSIDE}.trace",
    ("harness.candidates.own.native.rows", "my_samples"): f"{INSIDE}.rows",
}
# What there is to choose from, the field that chooses, and what is enough for most cases.
CHOICES = {
    ("harness.candidates.own.native.wrappers", "WRAPPERS"): ("wrapper", {"none"}),
    ("harness.candidates.own.native.kernels", "KERNELS"): ("kernel", {"eager", "sdpa"}),
}
# Decorators that register, or that do what the script does for the whole process.
DROPPED = {
    ("harness.candidates.bank", "mutant"),
    ("harness.candidates.bank", "benign"),
    ("harness.reference.threads", "one_thread"),
}


@dataclass(frozen=True, slots=True)
class Definition:
    """A name at the top of a module."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class External:
    """A name that a library binds, as the source calls it."""

    module: str
    attribute: str
    alias: str


@dataclass(frozen=True, slots=True)
class Ours:
    """A module of ours as such; it cannot be a value in a script."""

    module: str


Target = Definition | External


@dataclass(frozen=True, slots=True)
class Reference:
    """A use of something that is defined at the top of a module, ours or not."""

    part: Part
    use: Use
    target: Target
    # How many parts of the dotted name say which.
    depth: int


@dataclass(frozen=True, slots=True)
class Late:
    """An import from us inside a function: one of the names that it binds."""

    part: Part
    node: Imports
    alias: str
    target: Target


class Graph:
    """Modules by name, and what names in them lead to."""

    def __init__(self, cases: Sequence[Case]) -> None:
        bare = {
            what: f"{INSIDE}.bare"
            for what, (field, enough) in CHOICES.items()
            if {getattr(case, field) for case in cases} <= enough
        }
        self._stand_ins = STAND_INS | bare
        self._modules: dict[str, Module] = {}
        self._references: dict[Statement, list[Reference]] = {}
        # What has to be imported for the attributes of a library to be there.
        self.loads: dict[External, set[str]] = {}

    def module(self, name: str, path: Path | None = None) -> Module:
        if name not in self._modules:
            file = path or source_of(name)
            if file is None:
                raise CannotStandAlone(f"module={name}: there is no such module")
            self._modules[name] = ours(name, file) if is_ours(name) else Module.read(name, file)
        return self._modules[name]

    def resolve(self, module: Module, name: str) -> Target | Ours | None:
        """What a name means at the top of a module; None for what Python itself defines."""
        if name in module.imports:
            return self.imported(module.imports[name], name)
        if name in module.touching:
            return Definition(self._stand_ins.get((module.name, name), module.name), name)
        return None

    def imported(self, what: Import, alias: str) -> Target | Ours | None:
        """What an import leads to."""
        if not is_ours(what.module):
            external = External(what.module, what.attribute, alias)
            self.loads.setdefault(external, set()).update(what.loads)
            return external
        if not what.attribute:
            return Ours(what.module)
        return self.attribute(Ours(what.module), what.attribute)

    def attribute(self, of: Ours, name: str) -> Target | Ours:
        """What an attribute of one of our modules is."""
        found = self.resolve(self.module(of.module), name)
        if found is None and source_of(f"{of.module}.{name}"):
            return Ours(f"{of.module}.{name}")
        if found is None:
            raise CannotStandAlone(f"{of.module}.{name}: there is no such name")
        return found

    def references(self, statement: Statement) -> list[Reference]:
        """What it uses, except in decorators that are left out."""
        if statement not in self._references:
            dropped = list(self.dropped(statement))
            self._references[statement] = [
                found
                for part, use in statement.uses
                if not any(a <= use.start[0] <= b for a, b in dropped)
                and (found := self._followed(part, use))
            ]
        return self._references[statement]

    def dropped(self, statement: Statement) -> Iterator[tuple[int, int]]:
        """First and last line of each decorator that is left out."""
        for decorator in getattr(statement.node, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Name):
                target = self.resolve(statement.module, called.id)
                if isinstance(target, Definition) and (target.module, target.name) in DROPPED:
                    yield decorator.lineno, decorator.end_lineno

    def late(self, statement: Statement) -> Iterator[Late]:
        """Imports from us inside functions."""
        for part in statement.parts:
            for node in part.late:
                for alias, what in bindings(statement.module, node):
                    if not is_ours(what.module):
                        continue
                    target = self.imported(what, alias)
                    if not isinstance(target, Definition | External):
                        raise _a_module(statement.module, node.lineno, what.module)
                    yield Late(part, node, alias, target)

    def needs(self, part: Part) -> Iterator[Target]:
        """Everything that a part asks for."""
        for reference in self.references(part.statement):
            if reference.part is part:
                yield reference.target
        for late in self.late(part.statement):
            if late.part is part:
                yield late.target

    def _followed(self, part: Part, use: Use) -> Reference | None:
        module = part.statement.module
        target, depth = self.resolve(module, use.path[0]), 1
        while isinstance(target, Ours):
            if depth == len(use.path):
                raise _a_module(module, use.start[0], target.module)
            target, depth = self.attribute(target, use.path[depth]), depth + 1
        if isinstance(target, Definition) and len(use.path) > depth:
            chosen = self.chosen(target, use.path[depth])
            target, depth = (chosen, depth + 1) if chosen else (target, depth)
        return Reference(part, use, target, depth) if target else None

    def chosen(self, target: Definition, key: str) -> Target | None:
        """What a table of ours has under a key, if it has a name."""
        module = self.module(target.module)
        node = module.touching[target.name][0].node
        if not module.ours or not isinstance(node, ast.Assign) or not key.startswith("["):
            return None
        table = node.value
        if not isinstance(table, ast.Dict):
            return None
        named = {ast.unparse(k): v for k, v in zip(table.keys, table.values, strict=True) if k}
        value = named.get(key[1:-1])
        found = self.resolve(module, value.id) if isinstance(value, ast.Name) else None
        return found if isinstance(found, Definition | External) else None


@cache
def ours(name: str, path: Path) -> Module:
    """One of our modules, which does not change while we run."""
    return Module.read(name, path)


@cache
def source_of(module: str) -> Path | None:
    """Where one of our modules is; found without importing it."""
    base = PACKAGE.parent.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _a_module(module: Module, line: int, name: str) -> CannotStandAlone:
    return CannotStandAlone(
        f"{module.path}:{line}: {name} is used as a module, which a single file cannot have; "
        "import the names that are needed from it"
    )
