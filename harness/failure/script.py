"""A failure as one file for a bug report: the step, the case, and the numbers that are wrong."""

import ast
import importlib.util
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import harness
from harness.against import ITSELF, PLAIN
from harness.candidates import locate
from harness.candidates.beside import held
from harness.candidates.published.environment import Environment
from harness.candidates.registry import Named
from harness.compare import Comparison
from harness.failure.source_slice import bound, reached, used
from harness.ranks.support_query import ASKING
from harness.report import explain
from harness.trace import Kind
from harness.untrusted import BadInput

WIDTH = 99
# As many wrong elements as one reads.
MOST_ELEMENTS = 8
# What the harness says of a failure beside its first line, and fits into a few.
TOLD = ("then", "looks", "cause", "where")
# Faults that a step shows by itself, without the harness watching its ranks.
SHOWN = (Kind.RAISED, Kind.DIED, Kind.HUNG)

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


class NoScript(BadInput):
    """A script could show nothing, or nothing new; the message says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """A step as it stands in its file, and what to call."""

    text: str
    call: str
    # What has to be installed beside the harness.
    pins: tuple[str, ...] = ()


def script(comparison: Comparison | None, placement: str, deadline: float) -> str:
    """The whole file; `NoScript` where there is nothing that it could show."""
    if comparison is None or not comparison.verdict.failed:
        raise NoScript("there is nothing to show: no case failed")
    fault = comparison.fault
    if fault and (fault.kind not in SHOWN or fault.last_key == ASKING):
        raise NoScript(f"only `harness repro` shows this fault ({fault.kind})")
    source = source_of(comparison.candidate)
    headline, _, says, *lines = explain(comparison).splitlines()
    told = [line[2:] for line in lines if line[2:9].strip() in TOLD]
    needed = max(case.ranks for case in (*comparison.before, comparison.case))
    ranks = max(needed, comparison.ranks)
    needs = ", ".join((f"Needs ulysses-harness {harness.__version__}", *source.pins))
    head = HEAD.format(
        headline=headline.replace("\\", "/"),
        ranks="one rank that it starts" if ranks == 1 else f"{ranks} ranks that it starts",
        reference=REFERENCES[comparison.against],
        needs=textwrap.fill(f"{needs}.", WIDTH, break_on_hyphens=False),
    )
    future, text = _parted(source.text)
    return "".join(
        (
            head,
            f"\n{future}" if future else "",
            "\nfrom harness.failure.script_runtime import Scripted\n\n",
            "".join(f"# {line}\n" for line in told),
            "failure_shown = Scripted(\n",
            *(f"    {line}\n" for line in _literals(comparison, says[2:], placement, deadline)),
            f")\n{START}\n",
            f"# {'-' * 40} the step\n\n{text.strip()}\n\n# {'-' * 48}\n\n",
            f"failure_shown.judge({source.call})\n",
        )
    )


def _literals(comparison: Comparison, says: str, placement: str, deadline: float) -> Iterator[str]:
    yield f"candidate={comparison.candidate!r},"
    if comparison.before:
        yield "# The last is judged; the same ranks run the others before it."
    yield "cases=["
    yield from (f"    {str(case)!r}," for case in (*comparison.before, comparison.case))
    yield "],"
    if comparison.ranks:
        yield f"ranks={comparison.ranks},"
    yield f"says={says!r},"
    if comparison.first:
        yield f"key={comparison.first.key!r},"
        yield f"allowed={_number(comparison.first.allowed)},"
        yield "# By index (of a token, its number in the batch comes first): expected, got."
        yield "elements={"
        for index, expected, got in _elements(comparison):
            yield f"    {index}: ({_number(expected)}, {_number(got)}),"
        yield "},"
    if comparison.loss:
        yield f"loss=({', '.join(map(_number, comparison.loss))}),"
    yield f"placement={placement!r},"
    yield f"deadline={deadline:g},"


def _elements(comparison: Comparison) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """The first wrong element, and those near it that are wrong by the same measure."""
    first = comparison.first
    assert first is not None
    yield first.index, first.expected, first.got
    kept = next((each for each in comparison.differing if each.key == first.key), None)
    if kept is None or not kept.shape:
        return
    rows = kept.rows if kept.tokens is None else kept.tokens
    wrong = ~(np.abs(kept.got - kept.expected.astype(np.float64)) <= first.allowed)
    left = MOST_ELEMENTS - 1
    for row, *rest in np.argwhere(wrong).tolist():
        index = (row if rows is None else int(rows[row]), *rest)
        # Each slice of a matrix has a budget of its own; all of a vector has one.
        if left and index != first.index and (not rest or index[0] == first.index[0]):
            left -= 1
            yield index, kept.expected[row, *rest].item(), kept.got[row, *rest].item()


def _number(value: float) -> str:
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def source_of(candidate: str) -> Source:
    """The step of a candidate. `NoScript` where everybody who can run it has it already."""
    named = locate(candidate)
    place = named.place
    if named.environment:
        return _of_library(named.environment, named.attribute)
    if named.inside == "bank" or place.partition(".")[0] == harness.__name__:
        raise NoScript(f"{candidate} is part of the harness; `harness repro` shows it")
    path = _file_of(named)
    if path is None:
        raise NoScript(f"{candidate}: {place} is not a Python file")
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(level=level) if level:
                raise NoScript(f"{candidate}: a relative import leads nowhere from a single file")
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case ast.Import(names):
                modules = [each.name for each in names]
            case _:
                continue
        for module in modules:
            if (name := module.partition(".")[0]) in held(named.folder):
                raise NoScript(
                    f"{candidate}: imports {name} from beside it, and beside a single file there "
                    "is none; put what the step needs of it into the candidate's file"
                )
    return Source(text, f"{named.attribute}.run")


def _file_of(named: Named) -> Path | None:
    """Where its source is."""
    if named.inside == "file":
        return Path(named.place)
    if named.folder:
        inside = Path(named.folder, *named.place.split("."))
        files = (inside.with_suffix(".py"), inside / "__init__.py")
        return next(filter(Path.is_file, files), None)
    spec = importlib.util.find_spec(named.place)
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _parted(text: str) -> tuple[str, str]:
    """What must stand first in a file; and the rest, but for what a file does when it is run."""
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


def _of_library(environment: Environment, key: str) -> Source:
    """What an entry reaches of the module that takes its step."""
    library, pins = environment.library, environment.requirements
    door = (library.folder / "candidate.py").read_text()
    call = _entry(ast.parse(door), key)
    asked = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant)}
    for node in ast.parse(door).body:
        match node:
            # It gets ready, and passes on to a step that only ranks of this release can import.
            case ast.FunctionDef(
                name=name,
                body=[*before, ast.ImportFrom(module=str(module), names=[step]), ast.Expr()],
            ) if name in used(call):
                inside = (library.folder / f"{module.rpartition('.')[2]}.py").read_text()
                theirs = re.sub(rf"\b{name}\b", step.name, ast.unparse(call), count=1)
                names = used(ast.parse(theirs))
                there = set[str]().union(*map(bound, ast.parse(inside).body))
                ours = set[str]().union(names - there, *map(used, before))
                ready = ast.unparse(ast.Module(before, []))
                parts = (reached(door, ours, asked), ready, reached(inside, names, asked))
                return Source("\n\n".join(parts), theirs, pins)
    return Source(reached(door, used(call), asked), ast.unparse(call), pins)


def _entry(module: ast.Module, key: str) -> ast.expr:
    """What a library's table of steps has under a key."""
    for node in module.body:
        match node:
            case ast.Assign([ast.Name("STEPS")], ast.Dict(keys, values)) | ast.AnnAssign(
                ast.Name("STEPS"), _, ast.Dict(keys, values)
            ):
                named = zip(keys, values, strict=True)
                return next(
                    value for each, value in named if each and ast.literal_eval(each) == key
                )
    raise NoScript("candidate.py has no table of STEPS, written out")
