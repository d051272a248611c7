"""One file that shows a mismatch to somebody who does not have the harness."""

import ast
import textwrap
from collections.abc import Sequence

from harness.case import Case
from harness.failure.script.graph import INSIDE, Definition, External, Graph
from harness.failure.script.imports import import_lines
from harness.failure.script.literal import literal
from harness.failure.script.module import PACKAGE, Module, Statement, is_ours
from harness.failure.script.names import named
from harness.failure.script.reach import Reach, Reached
from harness.failure.script.root import Root, root
from harness.failure.script.text import text

WIDTH = 99

MAIN = Definition(f"{INSIDE}.main", "main")
CASE = Definition(f"{INSIDE}.batch", "Case")
# What the text around the definitions uses and defines.
SYS = External("sys", "", "sys")
AROUND = ("NAME", "LINE", "CASES")

HEAD = '''"""Plain training, and a sequence-parallel step that should come to the same.

    torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node {ranks} THIS_FILE

Needs torch, numpy{needs}. Prints where the two part first, and exits with 1 if they do.

{about}

Capitals at the end of a name are the shape of a tensor: B rows, S longest row, T tokens of all
rows end to end, P padding behind them, L tokens on this rank, V vocabulary, N query heads, K kv
heads, M and C of these on this rank, H head dim, s peers.
"""
'''
BEFORE = "# The last case is judged; the same ranks have to run the others before it.\n"
ROWS = "# Rows: token ids, a 1 where a token is a target of the loss, the side of the padding.\n"


def standalone(case: Case, candidate: str, before: Sequence[Case] = ()) -> str:
    """The source of a script that runs a candidate on a case, and judges it.

    `before` are cases that the same ranks must have run first. `UnknownCandidate` where the name
    leads nowhere, `CannotStandAlone` where what it leads to does not fit into one file.
    """
    cases = [*before, case]
    graph = Graph(cases)
    found = root(graph, candidate)
    reached = reach(graph, found)
    (batch,) = graph.module(CASE.module).touching[CASE.name]
    fields = {part.member for part in batch.parts if part in reached.parts}
    first = found.target.module
    names = named(graph, reached.statements, reached.externals, first=first, reserved=AROUND)
    head = HEAD.format(
        ranks=max(each.ranks for each in cases),
        needs="".join(f", {pin}" for pin in found.pins),
        about=textwrap.fill(_quoted(candidate)[1:-1] + _sentence(graph, found), WIDTH),
    )
    future = any(statement.module.annotations_wait for statement in reached.statements)
    made = names[found.target] + ("()" if found.made else "")
    return "".join(
        (
            head,
            "\nfrom __future__ import annotations\n" if future else "",
            f"\n{import_lines(graph, reached.externals, names)}\n",
            f"\nNAME = {_quoted(candidate)}\nLINE = {_quoted(str(case))}\n\n",
            (BEFORE if before else "") + ROWS + literal("CASES", cases, fields),
            *(
                _heading(last, statement) + text(graph, statement, names, reached.parts)
                for last, statement in zip(
                    (None, *reached.statements[:-1]), reached.statements, strict=True
                )
            ),
            '\n\nif __name__ == "__main__":\n',
            f"    {names[SYS]}.exit({names[MAIN]}(NAME, LINE, {made}{found.call}, CASES))\n",
        )
    )


def reach(graph: Graph, found: Root) -> Reached:
    """Everything that the candidate and its judgement need."""
    # Who knows what somebody else's source asks of a case.
    mentioned = {"run", *(() if is_ours(found.target.module) else Case.__dataclass_fields__)}
    return Reach(graph, mentioned).reached([found.target, MAIN, SYS, *found.others])


def _heading(last: Statement | None, statement: Statement) -> str:
    """What stands between a definition and the one before it."""
    module = statement.module
    if last is None or last.module is not module:
        return f"\n\n# From {_place(module)}\n"
    assign = ast.Assign | ast.AnnAssign | ast.Expr
    together = isinstance(last.node, assign) and isinstance(statement.node, assign)
    return "\n" if together else "\n\n"


def _place(module: Module) -> str:
    if module.ours:
        return module.path.relative_to(PACKAGE.parent).as_posix()
    return module.path.name


def _sentence(graph: Graph, found: Root) -> str:
    """What the definition of a mutant says that is wrong with it."""
    if not found.made or not isinstance(found.target, Definition):
        return ""
    (statement,) = graph.module(found.target.module).touching[found.target.name]
    assert isinstance(statement.node, ast.ClassDef)
    said = " ".join((ast.get_docstring(statement.node) or "").split())
    return f": {said}" if said else ""


def _quoted(text: str) -> str:
    quoted = repr(text)
    return f'"{quoted[1:-1]}"' if '"' not in text else quoted
