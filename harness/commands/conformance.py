"""`conformance`: published implementations, judged and written down."""

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from harness.commands.engines import open_engine
from harness.commands.options import (
    DIVERGED,
    FAULT,
    PASSED,
    Pools,
    Report,
    answer,
    ready_to_report,
)
from harness.commands.values import (
    WORD,
    Count,
    Deadline,
    Folder,
    Seed,
    Texts,
    UsageError,
    as_text,
)
from harness.engine.engine import run_all
from harness.engine.lot import WHOLE, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.candidates.published.library import Library
    from harness.case import Case
    from harness.conformance import Examined, Request, Results

# As many as any of their cases needs.
RANKS = 4


@dataclass(frozen=True, kw_only=True)
class Conformance(Report, Pools):
    """What is judged of published packages, and where it is written down."""

    cases: Count = 100
    """generated cases for each sp"""
    seed: Seed = 0
    """of the generated cases"""
    versions: Texts = ()
    """of one package: run its generated cases and listed bugs on each of these releases"""
    newest: bool = False
    """use the newest release; install it first with `candidates install NAME@newest`"""
    out: Folder = Path("docs")
    """the folder of conformance.md and .json; keeps the results of other candidates"""
    since: Annotated[Path | None, Parameter(metavar="DOCUMENT")] = None
    """a conformance.json of before: write since.md beside the pages, with what is new, mended or
    newly refused"""
    goldens: Folder = Path("golden")
    """the golden store"""
    device: Annotated[Literal["auto", "cpu", "cuda"], WORD] = "cpu"
    """where ranks run"""
    deadline: Deadline = 60.0


Names = Annotated[
    tuple[str, ...],
    Parameter(
        name="NAME",
        help="packages or single candidates, as `candidates list` shows them; default: all that "
        "are installed",
    ),
]


def run(names: Names = (), /, *, options: Conformance = Conformance()) -> int:
    versions = options.versions
    if versions and len({name.partition(".")[0] for name in names}) != 1:
        raise UsageError(f"--versions={as_text(versions)}: name one library")
    ready_to_report(options)
    chosen = wanted(names, newest=options.newest, installed=not versions)
    if not chosen:
        raise UsageError("NAME: nothing is installed; see `candidates list`")

    from harness.conformance import read, write

    out = options.out
    results, before = so_far(out), _before(options)
    records: dict[str, Any] = {}
    asked = options, versions
    with open_engine(open_judging, asked, options, RANKS, _told, len(chosen)) as engine:
        for name, record in run_all(chosen, engine):
            records[name] = record
            # Kept at once: hours of work are not to be lost with the last candidate.
            _enter({name: records[name] for name in chosen if name in records}, results, versions)
            write(out, results)
    records = {name: records[name] for name in chosen}
    for file, text in pages(read(out), out).items():
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_text(text)
    if before is not None:
        _tell_changes(before, records, out)
    status = _status(records, sweeping=bool(versions))
    return answer(options, {"found": records}, status, read(out))


def _enter(records: dict[str, Any], results: "Results", versions: Sequence[str]) -> None:
    """Where several candidates show one bug, that of the last in order is kept."""
    from harness.conformance import finding_record

    results["releases" if versions else "candidates"] |= records
    if versions:
        return
    for name, record in records.items():
        library = name.partition(".")[0]
        for key, found in record["listed"].items():
            results["findings"][f"{library} {key}"] = finding_record(key, found["record"])


def so_far(out: Path) -> "Results":
    """What was found before, if pages can be made from it: after hours it is late to see that."""
    from harness.conformance import BadResults, read
    from harness.untrusted import BadInput

    results = read(out)
    try:
        pages(results, out)
    except BadInput:
        # A folder is damaged, not the results: the error says which.
        raise
    except (LookupError, TypeError, ValueError, AttributeError):
        raise BadResults(f"--out={out}: its results are damaged; name another folder") from None
    return results


def _before(options: Conformance) -> "Results | None":
    from harness.conformance import BadResults, read_results

    if options.since is None:
        return None
    if options.versions:
        raise UsageError("--since: compares what is examined, and --versions sweeps releases")
    try:
        return read_results(options.since)
    except BadResults as error:
        raise UsageError(f"--since={error}") from None


def _tell_changes(before: "Results", records: dict[str, Any], out: Path) -> None:
    from harness.conformance import changes

    text = changes(before, {"candidates": records, "releases": {}, "findings": {}})
    (out / "since.md").write_text(text)
    print(text, end="", file=sys.stderr)  # noqa: T201


def pages(results: "Results", docs: Path) -> dict[str, str]:
    """By the name of its file in the folder `docs`."""
    from harness.candidates.published.library import libraries
    from harness.conformance import findings, page, upstream_reports

    known = libraries().values()
    listed = {"conformance.md": page(results), "findings.md": findings(known)}
    return {**listed, **dict(upstream_reports(known, results, docs))}


def _status(records: dict[str, Any], *, sweeping: bool) -> int:
    if sweeping:
        return PASSED
    if any(each["wiring"] or each["unexamined"] for each in records.values()):
        return FAULT
    wrong = any(each["failures"] or each["stale"] or each["leans"] for each in records.values())
    return DIVERGED if wrong else PASSED


def wanted(names: Sequence[str], *, newest: bool, installed: bool) -> list[str]:
    """Every candidate that was named, a library standing for all of its."""
    from harness.candidates import locate
    from harness.candidates.published.environment import NEWEST, Environment
    from harness.candidates.published.library import libraries

    known, release = libraries(), f"@{NEWEST}" if newest else ""

    def every(library: "Library") -> list[str]:
        return [f"{library.name}.{key}{release}" for key in library.limits]

    chosen: list[str] = []
    for name in names:
        if name in known:
            chosen += every(known[name])
        else:
            locate(name).load()
            chosen.append(name + release)
    if names:
        return chosen
    for library in known.values():
        version = NEWEST if newest else library.pinned
        if Environment(library, version).installed or not installed:
            chosen += every(library)
    return chosen


@contextmanager
def open_judging(
    options: Conformance, versions: Sequence[str], worker: Part = WHOLE
) -> "Iterator[Callable[[str], dict[str, Any]]]":
    """A function that judges one candidate: it gives the record, and what to say of it."""
    from harness.conformance import examine, examined_record, release_records, sweep

    request = _request(options, worker)
    goldens = {} if versions else _goldens(options.goldens)

    def judged(name: str) -> dict[str, Any]:
        if versions:
            return {"said": "", "record": release_records(sweep(name, versions, request))}
        examined = examine(name, goldens, request)
        return {"said": _in_words(examined), "record": examined_record(examined)}

    yield judged


def _request(options: Conformance, worker: Part) -> "Request":
    from harness.conformance import Request
    from harness.ranks.device import NoPlace, choose

    try:
        placement = choose(
            options.device,
            options.transport,
            RANKS,
            worker=worker.number - 1,
            workers=worker.of,
        )
    except NoPlace as error:
        raise UsageError(f"--{error}") from None
    return Request(options.cases, options.seed, placement, options.deadline)


def _in_words(examined: "Examined") -> str:
    """How one candidate came out."""
    from harness.conformance.stage import name_of

    counts = ", ".join(f"{count} {verdict}" for verdict, count in examined.verdicts.items())
    reasons = examined.wiring, *examined.unexamined, *examined.leans
    why = "".join(f"; {reason}" for reason in reasons if reason)
    return "".join(
        [
            f"{examined.candidate}: {counts}{why}, {examined.seconds:.0f} s\n",
            *(f"  {n} x {name_of(failure)}: {failure.case}\n" for failure, n in examined.failures),
        ]
    )


def _told(judged: dict[str, Any]) -> dict[str, Any]:
    """The record, now that what is to be said of it was said."""
    print(judged["said"], end="", file=sys.stderr)  # noqa: T201
    record: dict[str, Any] = judged["record"]
    return record


def _goldens(folder: Path) -> "dict[str, Case]":
    from harness.golden import BadGolden, Store, examine

    try:
        goldens, damages = examine(Store(folder).files())
    except BadGolden as error:
        raise UsageError(f"--goldens={folder}: {error}") from None
    if damages:
        raise UsageError(f"--goldens={folder}: is damaged; see `golden verify`")
    return {name: golden.vector.case for name, golden in goldens.items()}
