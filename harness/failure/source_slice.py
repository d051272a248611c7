"""The part of a module's source that some names need."""

import ast
from collections.abc import Set as AbstractSet
from itertools import pairwise


def reached(text: str, names: set[str], asked: AbstractSet[object]) -> str:
    """Return the source of all that these names need in a module.

    A table with an entry that is `asked` for keeps that entry alone; calls that are made for what
    they do stay.
    """
    body = [_chosen(node, asked) for node in ast.parse(text).body if not _is_docstring(node)]
    kept: list[ast.stmt] = []
    while more := [
        node
        for node in body
        if node not in kept and (isinstance(node, ast.Expr) or bound(node) & names)
    ]:
        kept += more
        names = names.union(*map(used, more))
    lines, written = text.splitlines(), ""
    imports = ast.Import | ast.ImportFrom
    for last, node in pairwise([None, *(node for node in body if node in kept)]):
        assert node is not None
        alike = all(isinstance(each, imports) for each in (last, node)) or all(
            isinstance(each, ast.Assign | ast.AnnAssign) for each in (last, node)
        )
        written += ("\n" if alike else "\n\n") + _text(node, names, lines)
    return written.strip()


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _chosen(node: ast.stmt, asked: AbstractSet[object]) -> ast.stmt:
    match node:
        case ast.Assign(value=ast.Dict() as table) | ast.AnnAssign(value=ast.Dict() as table):
            pairs = [
                (key, value)
                for key, value in zip(table.keys, table.values, strict=True)
                if isinstance(key, ast.Constant) and key.value in asked
            ]
            if pairs:
                table.keys, table.values = [key for key, _ in pairs], [value for _, value in pairs]
    return node


def _text(node: ast.stmt, names: set[str], lines: list[str]) -> str:
    """As it stands in its file, with what is said above it, unless parts of it are left out."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        node.names = [each for each in node.names if _bound_by(each) in names]
    start = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]) - 1
    said = "\n".join(lines[start : node.end_lineno])
    if ast.dump(ast.parse(said).body[0]) != ast.dump(node):
        return ast.unparse(node)
    while start and lines[start - 1].startswith("#"):
        start -= 1
        said = f"{lines[start]}\n{said}"
    return said


def bound(node: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    names = {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    imports = (each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom))
    return names | {_bound_by(alias) for each in imports for alias in each.names}


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def used(node: ast.AST) -> set[str]:
    """The names that it takes from elsewhere, also in annotations that are texts."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    for each in ast.walk(node):
        for field in ("annotation", "returns"):
            match getattr(each, field, None):
                case ast.Constant(value=str(text)):
                    names |= used(ast.parse(text, mode="eval"))
    return names
