"""The imports at the top of a script."""

import sys
from collections.abc import Iterable

from harness.failure.script.graph import External, Graph, Target

WIDTH = 99


def import_lines(graph: Graph, externals: Iterable[External], names: dict[Target, str]) -> str:
    """One block for the standard library, one for the rest."""
    plain: set[str] = set()
    from_module: dict[str, set[str]] = {}
    for external in externals:
        name = names[external]
        if external.attribute:
            renamed = "" if name == external.attribute else f" as {name}"
            from_module.setdefault(external.module, set()).add(f"{external.attribute}{renamed}")
            continue
        loads = graph.loads.get(external, set())
        if name == external.module:
            plain |= {f"import {module}" for module in loads or {name}}
        else:
            plain |= {f"import {external.module} as {name}", *(f"import {m}" for m in loads)}
    lines = sorted(plain) + [_from(module, found) for module, found in sorted(from_module.items())]
    blocks: dict[bool, list[str]] = {True: [], False: []}
    for line in lines:
        blocks[line.split()[1].partition(".")[0] in sys.stdlib_module_names].append(line)
    return "\n\n".join("\n".join(block) for block in blocks.values() if block)


def _from(module: str, found: set[str]) -> str:
    ordered = sorted(found, key=lambda name: (not name.isupper(), name[:1].islower(), name))
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= WIDTH:
        return line
    listed = "".join(f"    {name},\n" for name in ordered)
    return f"from {module} import (\n{listed})"
