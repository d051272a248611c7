"""The part of a module's source that some names need.

A statement is kept if it binds a name that is needed; the names it uses are then needed too, until
nothing is added. Calls at the top level are kept for their effect.
"""

import ast
from collections.abc import Set as AbstractSet
from itertools import pairwise


def slice_source(text: str, names: set[str], wanted_keys: AbstractSet[object]) -> str:
    """Return the source of everything in a module that these names need.

    A dict at the top level that has some of `wanted_keys` keeps only these entries.
    """
    body = [
        _keep_wanted_entries(node, wanted_keys)
        for node in ast.parse(text).body
        if not _is_docstring(node)
    ]
    kept: list[ast.stmt] = []
    while more := [
        node
        for node in body
        if node not in kept and (isinstance(node, ast.Expr) or bound_names(node) & names)
    ]:
        kept += more
        names = names.union(*map(used_names, more))
    lines, written = text.splitlines(), ""
    imports, assignments = ast.Import | ast.ImportFrom, ast.Assign | ast.AnnAssign
    for last, node in pairwise([None, *(node for node in body if node in kept)]):
        assert node is not None
        are_alike = any(
            isinstance(last, kind) and isinstance(node, kind) for kind in (imports, assignments)
        )
        written += ("\n" if are_alike else "\n\n") + _source_text(node, names, lines)
    return written.strip()


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _keep_wanted_entries(node: ast.stmt, wanted_keys: AbstractSet[object]) -> ast.stmt:
    match node:
        case ast.Assign(value=ast.Dict() as table) | ast.AnnAssign(value=ast.Dict() as table):
            pairs = [
                (key, value)
                for key, value in zip(table.keys, table.values, strict=True)
                if isinstance(key, ast.Constant) and key.value in wanted_keys
            ]
            if pairs:
                table.keys, table.values = [key for key, _ in pairs], [value for _, value in pairs]
    return node


def _source_text(node: ast.stmt, names: set[str], lines: list[str]) -> str:
    """Return a statement with the comment above it, or unparsed if parts of it were left out."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        node.names = [alias for alias in node.names if _bound_by(alias) in names]
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    text = "\n".join(lines[start : node.end_lineno])
    if ast.dump(ast.parse(text).body[0]) != ast.dump(node):
        return ast.unparse(node)
    while start and lines[start - 1].startswith("#"):
        start -= 1
        text = f"{lines[start]}\n{text}"
    return text


def bound_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    nodes = list(ast.walk(node))
    stored = {
        inner.id
        for inner in nodes
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
    imports = (inner for inner in nodes if isinstance(inner, ast.Import | ast.ImportFrom))
    return stored | {_bound_by(alias) for inner in imports for alias in inner.names}


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def used_names(node: ast.AST) -> set[str]:
    """Return the names that occur in a node, also in annotations that are strings."""
    nodes = list(ast.walk(node))
    names = {inner.id for inner in nodes if isinstance(inner, ast.Name)}
    for inner in nodes:
        for field in ("annotation", "returns"):
            match getattr(inner, field, None):
                case ast.Constant(value=str(text)):
                    names |= used_names(ast.parse(text, mode="eval"))
    return names
