"""Which names of its module a piece of source uses, and where it says so."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True)
class Use:
    """A name of the module with what is asked of it: ("a", "b", "c"), or ("a", "['b']")."""

    path: tuple[str, ...]
    # Of each part, as (line, byte in that line).
    start: tuple[int, int]
    ends: tuple[tuple[int, int], ...]


def uses(node: ast.AST) -> list[tuple[ast.AST, Use]]:
    """Every use of a name that is not local to a function inside, and the node that it is."""
    finder = _Finder()
    finder.visit(node)
    return finder.found


def bound(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The names that these statements bind in their own scope."""
    names: set[str] = set()
    declared: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                continue
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                names |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(node.id)
            case ast.alias():
                names.add(node.asname or node.name.partition(".")[0])
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
                names.add(node.name)
            case ast.MatchMapping(rest=str(rest)):
                names.add(rest)
            case ast.Global() | ast.Nonlocal():
                declared.update(node.names)
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(names - declared)


def all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    several = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return several + [one for one in (arguments.vararg, arguments.kwarg) if one]


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, Use]] = []
        # From the outside in: the names of each scope, and whether scopes within see them.
        self.scopes: list[tuple[frozenset[str], bool]] = []
        self.in_annotation = False
        # The text that what is visited stands in.
        self.quoted: ast.Constant | None = None

    def visit_Name(self, node: ast.Name) -> None:
        self._use([node])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts: list[ast.Name | ast.Attribute] = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute):
            parts.insert(0, at)
            at = at.value
        if isinstance(at, ast.Name):
            self._use([at, *parts])
        else:
            self.visit(at)

    def visit_FunctionDef(self, node: Function) -> None:
        for each in node.decorator_list:
            self.visit(each)
        self._arguments(node.args)
        self._annotation(node.returns)
        names = {argument.arg for argument in all_arguments(node.args)}
        self._within(bound(node.body) | names, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._arguments(node.args)
        names = {argument.arg for argument in all_arguments(node.args)}
        self._within(bound([node.body]) | names, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        self._within(bound(node.body), node.body, nested=False)

    def visit_ListComp(self, node: Comprehension) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        targets = bound(generator.target for generator in node.generators)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._within(targets, [*results, first.target, *first.ifs, *others])

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Constant) and not self.in_annotation:
            name = node.value
            if isinstance(name, ast.Name):
                self._use([name, node])
                return
        literal = ast.unparse(node.value).endswith("Literal")
        before, self.in_annotation = self.in_annotation, self.in_annotation and not literal
        self.generic_visit(node)
        self.in_annotation = before

    def visit_Constant(self, node: ast.Constant) -> None:
        if not self.in_annotation or not isinstance(node.value, str):
            return
        try:
            inner = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return
        for each in ast.walk(inner):
            if isinstance(each, ast.expr):
                # One more for the quote.
                each.lineno, each.end_lineno = node.lineno, node.lineno
                each.col_offset += node.col_offset + 1
                each.end_col_offset = (each.end_col_offset or 0) + node.col_offset + 1
        self.quoted = node
        self.visit(inner)
        self.quoted = None

    def _arguments(self, arguments: ast.arguments) -> None:
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default:
                self.visit(default)
        for argument in all_arguments(arguments):
            self._annotation(argument.annotation)

    def _annotation(self, node: ast.expr | None) -> None:
        if node:
            self.in_annotation = True
            self.visit(node)
            self.in_annotation = False

    def _within(
        self, names: frozenset[str], body: Iterable[ast.AST], *, nested: bool = True
    ) -> None:
        self.scopes.append((names, nested))
        for each in body:
            self.visit(each)
        self.scopes.pop()

    def _use(self, parts: Sequence[ast.expr]) -> None:
        first = parts[0]
        assert isinstance(first, ast.Name)
        for depth, (names, nested) in enumerate(self.scopes):
            if first.id in names and (nested or depth == len(self.scopes) - 1):
                return
        path = tuple(_said(part) for part in parts)
        ends = tuple((part.end_lineno or 0, part.end_col_offset or 0) for part in parts)
        use = Use(path, (first.lineno, first.col_offset), ends)
        self.found.append((self.quoted or first, use))


def _said(part: ast.expr) -> str:
    match part:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(key)):
            return f"[{key!r}]"
    raise AssertionError("a dotted name has no other parts")
