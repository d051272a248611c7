"""`conformance`: judge published packages, and write their results and pages."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    require_writable_report,
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

# No case needs more.
RANKS = 4


@dataclass(frozen=True, kw_only=True)
class Conformance(Report, Pools):
    """The options of `conformance`."""

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
    mine: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """of one package: judge the entries that are nearest to this configuration, which is YAML,
    JSON, or a script with the words of a command"""
    goldens: Folder | None = None
    """the golden store; without it the folder `golden`, if there is one"""
    device: Annotated[Literal["auto", "cpu", "cuda"], WORD] = "cpu"
    """where ranks run"""
    deadline: Deadline = 60.0


# By entry, the settings that its cases state.
Settings = Mapping[str, Mapping[str, str]]
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
    require_writable_report(options)
    settings: Settings = {}
    if options.mine is not None:
        from harness.conformance.mine import choose_entries

        choice, text = choose_entries(names, options.mine)
        print(text, file=sys.stderr)  # noqa: T201 - it is no part of the document
        library = names[0].partition(".")[0]
        names = tuple(f"{library}.{entry}" for entry in choice.entries)
        settings = choice.stated
    chosen = _choose_candidates(names, newest=options.newest, installed=not versions)
    if not chosen:
        raise UsageError("NAME: nothing is installed; see `candidates list`")

    from harness.conformance import read, write

    out = options.out
    results, before = read_results_in(out), _read_before(options)
    records: dict[str, Any] = {}
    asked = options, versions, settings
    with open_engine(open_judging, asked, options, RANKS, _print_text, len(chosen)) as engine:
        for name, record in run_all(chosen, engine):
            records[name] = record
            # Written after each candidate: a crash in the last one must not lose hours of work.
            _add_to(results, {name: records[name] for name in chosen if name in records}, versions)
            write(out, results)
    records = {name: records[name] for name in chosen}
    for file, text in pages(read(out), out).items():
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_text(text)
    if before is not None:
        _report_changes(before, records, out)
    status = _status_of(records, sweeping=bool(versions))
    return answer(options, {"found": records}, status, read(out))


def _add_to(results: "Results", records: dict[str, Any], versions: Sequence[str]) -> None:
    """Add records of candidates to the results; of findings of one bug, the last one stays."""
    from harness.conformance import finding_names, finding_record

    results["releases" if versions else "candidates"] |= records
    if versions:
        return
    names = finding_names()
    for name, record in records.items():
        for key, found in record["listed"].items():
            finding = f"{name.partition('.')[0]} {key}"
            if finding in names:
                results["findings"][finding] = finding_record(key, found["record"])


def read_results_in(out: Path) -> "Results":
    """Return the results of earlier runs in a folder; raise `BadResults` if they are damaged.

    They are damaged if no pages can be made of them. That is found out now, not after hours of
    judging.
    """
    from harness.conformance import BadResults, read
    from harness.untrusted import BadInput

    results = read(out)
    try:
        pages(results, out)
    except BadInput:
        # A package folder is damaged, not the results: the error names it.
        raise
    except (LookupError, TypeError, ValueError, AttributeError):
        raise BadResults(f"--out={out}: its results are damaged; name another folder") from None
    return results


def _read_before(options: Conformance) -> "Results | None":
    """Return the results that --since names, if it is given."""
    from harness.conformance import BadResults, read_results

    if options.since is None:
        return None
    if options.versions:
        raise UsageError("--since: compares what is examined, and --versions sweeps releases")
    try:
        return read_results(options.since)
    except BadResults as error:
        raise UsageError(f"--since={error}") from None


def _report_changes(before: "Results", records: dict[str, Any], out: Path) -> None:
    """Print what changed since the results before, and write it into since.md."""
    from harness.conformance import changes

    text = changes(before, {"candidates": records, "releases": {}, "findings": {}})
    (out / "since.md").write_text(text)
    print(text, end="", file=sys.stderr)  # noqa: T201 - it is no part of the document


def pages(results: "Results", docs: Path) -> dict[str, str]:
    """Return the pages of the results, by their file names in the folder `docs`."""
    from harness.candidates.published.library import libraries
    from harness.conformance import findings, not_findings, page, upstream_reports

    known = libraries().values()
    listed = {
        "conformance.md": page(results),
        "findings.md": findings(known),
        "not-findings.md": not_findings(known),
    }
    return {**listed, **dict(upstream_reports(known, results, docs))}


def _status_of(records: dict[str, Any], *, sweeping: bool) -> int:
    """Return the exit status; a sweep over releases passes whatever it finds."""
    if sweeping:
        return PASSED
    if any(record["wiring"] or record["unexamined"] for record in records.values()):
        return FAULT
    is_wrong = any(
        record["failures"] or record["stale"] or record["leans"] for record in records.values()
    )
    return DIVERGED if is_wrong else PASSED


def _choose_candidates(names: Sequence[str], *, newest: bool, installed: bool) -> list[str]:
    """Return the candidates that were named, a package standing for all of its entries.

    Without a name, return all; with `installed`, only those of packages that are installed.
    """
    from harness.candidates import locate
    from harness.candidates.published.environment import NEWEST, Environment
    from harness.candidates.published.library import libraries

    known, release = libraries(), f"@{NEWEST}" if newest else ""

    def entries(library: "Library") -> list[str]:
        return [f"{library.name}.{key}{release}" for key in library.limits]

    chosen: list[str] = []
    for name in names:
        if name in known:
            chosen += entries(known[name])
        else:
            locate(name).load()
            chosen.append(name + release)
    if names:
        return chosen
    for library in known.values():
        version = NEWEST if newest else library.pinned
        if Environment(library, version).installed or not installed:
            chosen += entries(library)
    return chosen


@contextmanager
def open_judging(
    options: Conformance, versions: Sequence[str], settings: Settings, worker: Part = WHOLE
) -> "Iterator[Callable[[str], dict[str, Any]]]":
    """Yield a function that judges one candidate and returns its record and a text to print."""
    from harness.conformance import examine, examined_record, release_records, sweep

    request = replace(_make_request(options, worker), settings=settings)
    goldens = {} if versions else read_goldens(options.goldens)

    def judge(name: str) -> dict[str, Any]:
        if versions:
            return {"text": "", "record": release_records(sweep(name, versions, request))}
        examined = examine(name, goldens, request)
        return {"text": _describe(examined), "record": examined_record(examined)}

    yield judge


def _make_request(options: Conformance, worker: Part) -> "Request":
    from harness.conformance import Request
    from harness.ranks.device import ImpossiblePlacement, choose_placement

    try:
        placement = choose_placement(
            options.device,
            options.transport,
            RANKS,
            worker=worker.number - 1,
            workers=worker.of,
        )
    except ImpossiblePlacement as error:
        raise UsageError(f"--{error}") from None
    return Request(options.cases, options.seed, placement, options.deadline)


def _describe(examined: "Examined") -> str:
    """Describe the verdicts, faults and failures of one candidate, for the terminal."""
    from harness.conformance.stage import failure_name

    counts = ", ".join(f"{count} {verdict}" for verdict, count in examined.verdicts.items())
    reasons = examined.wiring, *examined.unexamined, *examined.leans
    why = "".join(f"; {reason}" for reason in reasons if reason)
    return "".join(
        [
            f"{examined.candidate}: {counts}{why}, {examined.seconds:.0f} s\n",
            *(
                f"  {n} x {failure_name(failure)}: {failure.case}\n"
                for failure, n in examined.failures
            ),
        ]
    )


def _print_text(judged: dict[str, Any]) -> dict[str, Any]:
    """Print the text about a candidate, and return its record."""
    print(judged["text"], end="", file=sys.stderr)  # noqa: T201 - it is no part of the document
    record: dict[str, Any] = judged["record"]
    return record


def read_goldens(named: Path | None) -> "dict[str, Case]":
    """Return the case of each golden; raise `UsageError` if the store cannot be read whole."""
    from harness.golden import BadGolden, Store, examine

    folder = named or Path("golden")
    if named is None and not folder.is_dir():
        text = "harness: no golden is judged; --goldens names a store of them"
        print(text, file=sys.stderr)  # noqa: T201 - it is no part of the document
        return {}
    try:
        goldens, damages = examine(Store(folder).files())
    except BadGolden as error:
        raise UsageError(f"--goldens={folder}: {error}") from None
    if damages:
        raise UsageError(f"--goldens={folder}: is damaged; see `golden verify`")
    return {name: golden.vector.case for name, golden in goldens.items()}
