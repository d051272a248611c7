"""What a Python source imports and defines, read without running it."""

import ast
import builtins
import re
import symtable


def undefined(source: str) -> set[str]:
    """Names that a module uses and neither it nor Python defines."""
    top = symtable.symtable(source, "script", "exec")
    known = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    known |= {*dir(builtins), "__name__"}
    missing: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        missing |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is top or symbol.is_global())
        } - known
    return missing


def imported(source: str) -> set[str]:
    """The packages that it imports, anywhere in it."""
    return set(re.findall(r"^\s*(?:import|from) (\w+)", source, re.MULTILINE))


def imported_first(source: str) -> set[str]:
    """The packages that it imports before it does or defines anything."""
    found: set[str] = set()
    for node in ast.parse(source).body[1:]:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        else:
            break
    return found
