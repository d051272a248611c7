"""The source of a candidate's step, with all that it imports from beside it."""

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import harness
from harness.candidates import locate
from harness.candidates.beside import held
from harness.candidates.published.environment import Environment
from harness.candidates.registry import Named
from harness.failure.source_slice import bound_names, slice_source, used_names
from harness.untrusted import BadInput


class NoScript(BadInput):
    """No script can be written that shows the failure; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a step, and the expression that is called."""

    text: str
    call: str
    # Packages that the step needs beside the harness.
    pins: tuple[str, ...] = ()
    # The text of each module that lies beside the step and is imported, those first that others
    # import.
    beside: Mapping[str, str] = field(default_factory=dict)


def source_of(candidate: str) -> Source:
    """Return the source of a candidate's step.

    Raise `NoScript` if it is part of the harness, is no Python file, or imports what cannot be put
    into a single file with it.
    """
    named = locate(candidate)
    place = named.place
    if named.environment:
        return _library_source(named.environment, named.attribute)
    if named.inside == "bank" or place.partition(".")[0] == harness.__name__:
        raise NoScript(f"{candidate} is part of the harness; `harness repro` shows it")
    path = _file_of(named)
    if path is None:
        raise NoScript(f"{candidate}: {place} is not a Python file")
    beside = _modules_beside(candidate, path, held(named.folder))
    return Source(path.read_text(), f"{named.attribute}.run", beside=beside)


def _modules_beside(candidate: str, path: Path, held_there: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each module that a file imports from beside it, in `Source`'s order."""
    texts: dict[str, str] = {}

    def follow(file: Path, importing: tuple[str, ...]) -> None:
        for name in _imported(candidate, file):
            if name in importing:
                raise NoScript(f"{candidate}: {name} and {importing[-1]} import each other")
            if name not in held_there or name in texts:
                continue
            other = Path(held_there[name])
            if other.suffix != ".py" or other.name == "__init__.py":
                raise NoScript(
                    f"{candidate}: imports {name} from beside it, which is no single file; put "
                    "what the step needs of it into a file"
                )
            follow(other, (*importing, name))
            texts[name] = other.read_text()

    follow(path, (path.stem,))
    return texts


def _imported(candidate: str, file: Path) -> Iterator[str]:
    """Yield the first part of the name of each module that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.ImportFrom(level=level) if level:
                raise NoScript(f"{candidate}: a relative import leads nowhere from a single file")
            case ast.ImportFrom(module=str(module)):
                yield module.partition(".")[0]
            case ast.Import(names):
                yield from (alias.name.partition(".")[0] for alias in names)


def _file_of(named: Named) -> Path | None:
    """Return the file that a candidate's module is read from, or None if it has none."""
    if named.inside == "file":
        return Path(named.place)
    if named.folder:
        inside = Path(named.folder, *named.place.split("."))
        files = (inside.with_suffix(".py"), inside / "__init__.py")
        return next(filter(Path.is_file, files), None)
    spec = importlib.util.find_spec(named.place)
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _library_source(environment: Environment, key: str) -> Source:
    """Return what the step under a key of `STEPS` needs of a library's modules.

    The step is in `candidate.py`; or a function there prepares something and calls a step that it
    imports from another module, because only ranks of the release can import that one.
    """
    library, pins = environment.library, environment.requirements
    if environment.base:
        pins = (f"Python {environment.base.python}", *pins)
    candidate = (library.folder / "candidate.py").read_text()
    call = _step_expression(ast.parse(candidate), key)
    constants = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant)}
    for node in ast.parse(candidate).body:
        match node:
            case ast.FunctionDef(
                name=name,
                body=[*before, ast.ImportFrom(module=str(module), names=[step]), ast.Expr()],
            ) if name in used_names(call):
                inner = (library.folder / f"{module.rpartition('.')[2]}.py").read_text()
                inner_call = re.sub(rf"\b{name}\b", step.name, ast.unparse(call), count=1)
                names = used_names(ast.parse(inner_call))
                bound_inside = set[str]().union(*map(bound_names, ast.parse(inner).body))
                outer = set[str]().union(names - bound_inside, *map(used_names, before))
                parts = (
                    slice_source(candidate, outer, constants),
                    ast.unparse(ast.Module(before, [])),
                    slice_source(inner, names, constants),
                )
                return Source("\n\n".join(parts), inner_call, pins)
    text = slice_source(candidate, used_names(call), constants)
    return Source(text, ast.unparse(call), pins)


def _step_expression(module: ast.Module, key: str) -> ast.expr:
    """Return the expression under a key of the module's `STEPS`."""
    for node in module.body:
        match node:
            case ast.Assign([ast.Name("STEPS")], ast.Dict(keys, values)) | ast.AnnAssign(
                ast.Name("STEPS"), _, ast.Dict(keys, values)
            ):
                return next(
                    value
                    for name, value in zip(keys, values, strict=True)
                    if name and ast.literal_eval(name) == key
                )
    raise NoScript("candidate.py has no table of STEPS, written out")
