"""A failure as one Python file for a bug report: the step, the case and the wrong numbers.

`python FILE` starts ranks, runs the step on the case, and reports whether the numbers are still
wrong. Such a file imports `script_runtime.py` from the harness.
"""

import ast
import math
import textwrap
from collections.abc import Iterator

import numpy as np

import harness
from harness.against import ITSELF, PLAIN, RECIPE, names_recipe, reference_name
from harness.candidates import locate
from harness.compare import Comparison
from harness.failure.source import NoScript, source_of
from harness.rank_program.support_query import ASKING
from harness.report import explain
from harness.trace import Kind

WIDTH = 99
# A script states only as many wrong elements as a reader looks at.
MOST_ELEMENTS = 8
# The lines of `explain` that a script has as comments; they are short.
COMMENT_LABELS = ("then", "looks", "cause", "where")
# Faults that show without the harness watching the ranks.
VISIBLE_FAULTS = (Kind.RAISED, Kind.DIED, Kind.HUNG)

REFERENCES = {PLAIN: "plain training on one device", ITSELF: "the same step at sp 1 in fp64"}

HEAD = '''"""{headline}

    python THIS_FILE

runs the step below on {ranks}, and says where its numbers part
from those of {reference}. Exit status: 1 where they do, 0 where they do not,
3 where a rank crashes or hangs.
{needs}
"""
'''
START = """# Started by hand, this starts the ranks and never returns. On a rank it does nothing.
failure_shown.start(__file__)
"""


def script(comparison: Comparison | None, placement: str, deadline: float) -> str:
    """Return the text of the script; raise `NoScript` if it could show nothing."""
    if comparison is None or not comparison.verdict.failed:
        raise NoScript("there is nothing to show: no case failed")
    fault = comparison.fault
    if fault and (fault.kind not in VISIBLE_FAULTS or fault.last_key == ASKING):
        raise NoScript(f"only `harness repro` shows this fault ({fault.kind})")
    source = source_of(comparison.candidate)
    # A user's step with a recipe has plain training with it, which the script computes as well. In
    # the process of a library that would not be plain; there the stated numbers remain.
    named = locate(comparison.candidate)
    computes = comparison.against == RECIPE and not named.environment
    call = f"{source.call}, {named.attribute}.run_plain" if computes else source.call
    headline, _, first_line, *lines = explain(comparison).splitlines()
    comments = [line[2:] for line in lines if line[2:9].strip() in COMMENT_LABELS]
    needed = max(case.ranks for case in (*comparison.inquiry.before, comparison.case))
    ranks = max(needed, comparison.inquiry.ranks)
    needs = ", ".join((f"Needs ulysses-harness {harness.__version__}", *source.pins))
    head = HEAD.format(
        headline=headline.replace("\\", "/"),
        ranks="one rank that it starts" if ranks == 1 else f"{ranks} ranks that it starts",
        reference=REFERENCES.get(
            comparison.against, reference_name(comparison.case, comparison.against)
        ),
        needs=textwrap.fill(f"{needs}.", WIDTH, break_on_hyphens=False),
    )
    future, text = _split_source(source.text)
    literals = _literals(comparison, first_line[2:], placement, deadline)
    return "".join(
        (
            head,
            f"\n{future}" if future else "",
            "\nfrom harness.failure.script_runtime import Scripted\n\n",
            "".join(f"# {line}\n" for line in comments),
            "failure_shown = Scripted(\n",
            *(f"    {line}\n" for line in literals),
            f")\n{START}\n",
            *(_module(name, text) for name, text in source.beside.items()),
            f"# {'-' * 40} the step\n\n{text.strip()}\n\n# {'-' * 48}\n\n",
            f"failure_shown.judge({call})\n",
        )
    )


def _literals(comparison: Comparison, says: str, placement: str, deadline: float) -> Iterator[str]:
    """Yield the arguments of `Scripted`, line by line."""
    yield f"candidate={comparison.candidate!r},"
    if comparison.inquiry.before:
        yield "# The last is judged; the same ranks run the others before it."
    yield "cases=["
    yield from (f"    {str(case)!r}," for case in (*comparison.inquiry.before, comparison.case))
    yield "],"
    if comparison.inquiry.ranks:
        yield f"ranks={comparison.inquiry.ranks},"
    yield f"says={says!r},"
    if comparison.measured.first:
        yield f"key={comparison.measured.first.key!r},"
        yield f"allowed={_number(comparison.measured.first.allowed)},"
        yield "# By index (of a token, its number in the batch comes first): expected, got."
        yield "elements={"
        for index, expected, got in _elements(comparison):
            yield f"    {index}: ({_number(expected)}, {_number(got)}),"
        yield "},"
    if names_recipe(comparison.against) and comparison.case.dtype == "fp64":
        yield "# What asks for fp32 gets fp64, as in plain training of the recipe."
        yield "exactly=True,"
    if comparison.measured.loss:
        yield f"loss=({', '.join(map(_number, comparison.measured.loss))}),"
    yield f"placement={placement!r},"
    yield f"deadline={deadline:g},"


def _elements(comparison: Comparison) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Yield the first wrong element, then others that are wrong by the same budget."""
    first = comparison.measured.first
    assert first is not None
    yield first.index, first.expected, first.got
    kept = next(
        (tensor for tensor in comparison.measured.differing if tensor.key == first.key), None
    )
    if kept is None or not kept.shape:
        return
    rows = kept.rows if kept.tokens is None else kept.tokens
    wrong = ~(np.abs(kept.got - kept.expected.astype(np.float64)) <= first.allowed)
    left = MOST_ELEMENTS - 1
    for row, *rest in np.argwhere(wrong).tolist():
        index = (row if rows is None else int(rows[row]), *rest)
        # Each slice of a matrix has its own budget, and a whole vector has one.
        if left and index != first.index and (not rest or index[0] == first.index[0]):
            left -= 1
            yield index, kept.expected[row, *rest].item(), kept.got[row, *rest].item()


def _number(value: float) -> str:
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def _module(name: str, text: str) -> str:
    """Return the statement that has the step import this text as a module."""
    quotes = next((quotes for quotes in ("'''", '"""') if quotes not in text), None)
    # A raw text cannot end with a backslash or a quote; a line's end makes no difference.
    literal = f"r{quotes}{text.rstrip()}\n{quotes}" if quotes else repr(text)
    return f"# {'-' * 40} {name}.py\n\nfailure_shown.put_beside({name!r}, {literal})\n\n"


def _split_source(text: str) -> tuple[str, str]:
    """Return the `__future__` imports, and the rest without its `if __name__` blocks."""
    lines = text.splitlines(keepends=True)
    future = ""
    for node in reversed(ast.parse(text).body):
        match node:
            case ast.ImportFrom(module="__future__"):
                future = f"{ast.unparse(node)}\n{future}"
            case ast.If(test=ast.Compare(left=ast.Name("__name__"))):
                pass
            case _:
                continue
        del lines[node.lineno - 1 : node.end_lineno]
    return future, "".join(lines)
