"""`conformance`: published implementations, judged and written down."""

import argparse
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.campaign.lot import WHOLE, Part
from harness.campaign.places import each
from harness.commands.options import (
    DIVERGED,
    FAULT,
    PASSED,
    UsageError,
    answer,
    ready_to_report,
    report_option,
)
from harness.commands.places import open_places, places_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.candidates.published.library import Library
    from harness.case import Case
    from harness.conformance import Examined, Request, Results

HELP = "judge published packages, and write the tables"
# As many as any of their cases needs.
RANKS = 4


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="packages or single candidates, as `candidates list` shows them; default: all that "
        "are installed",
    )
    parser.add_argument(
        "--cases",
        type=int,
        default=100,
        metavar="N",
        help="generated cases for each sp; default: 100",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument(
        "--versions",
        metavar="LIST",
        help="of one package: run its generated cases and listed bugs on each of these releases",
    )
    parser.add_argument(
        "--newest",
        action="store_true",
        help="use the newest release; install it first with `candidates install NAME@newest`",
    )
    parser.add_argument(
        "--out",
        default="docs",
        metavar="FOLDER",
        help="the folder of conformance.md and .json; keeps the results of other candidates; "
        "default: docs",
    )
    parser.add_argument(
        "--since",
        metavar="DOCUMENT",
        help="a conformance.json of before: write since.md beside the pages, with what is new, "
        "mended or newly refused",
    )
    parser.add_argument(
        "--goldens", default="golden", metavar="FOLDER", help="the golden store; default: golden"
    )
    places_options(parser)
    parser.add_argument("--device", default="cpu", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--transport", default="auto", choices=("auto", "gloo", "nccl"))
    parser.add_argument(
        "--deadline",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time limit of one case; default: 60",
    )
    report_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document as well")


def run(options: argparse.Namespace) -> int:
    if options.cases < 1:
        raise UsageError(f"--cases={options.cases}: at least one case must be examined")
    versions = options.versions.split(",") if options.versions else []
    if versions and len({name.partition(".")[0] for name in options.names}) != 1:
        raise UsageError(f"--versions={options.versions}: name one library")
    ready_to_report(options)
    names = wanted(options.names, newest=options.newest, installed=not versions)
    if not names:
        raise UsageError("NAME: nothing is installed; see `candidates list`")

    from harness.conformance import read, write

    out = Path(options.out)
    results, before = so_far(out), _before(options)
    records: dict[str, Any] = {}
    asked = options, versions
    with open_places(open_judging, asked, options, RANKS, _told, len(names)) as places:
        for name, record in each(names, places):
            records[name] = record
            # Kept at once: hours of work are not to be lost with the last candidate.
            _enter({name: records[name] for name in names if name in records}, results, versions)
            write(out, results)
    records = {name: records[name] for name in names}
    for file, text in pages(read(out), out).items():
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_text(text)
    if before is not None:
        _tell_changes(before, records, out)
    status = _status(records, sweeping=bool(versions))
    return answer(options, {"found": records}, status, read(out))


def _enter(records: dict[str, Any], results: "Results", versions: list[str]) -> None:
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
    from harness.outside import BadInput

    results = read(out)
    try:
        pages(results, out)
    except BadInput:
        # A folder is damaged, not the results: the error says which.
        raise
    except (LookupError, TypeError, ValueError, AttributeError):
        raise BadResults(f"--out={out}: its results are damaged; name another folder") from None
    return results


def _before(options: argparse.Namespace) -> "Results | None":
    from harness.conformance import BadResults, read_results

    if options.since is None:
        return None
    if options.versions:
        raise UsageError("--since: compares what is examined, and --versions sweeps releases")
    try:
        return read_results(Path(options.since))
    except BadResults as error:
        raise UsageError(f"--since={error}") from None


def _tell_changes(before: "Results", records: dict[str, Any], out: Path) -> None:
    from harness.conformance import since

    text = since(before, {"candidates": records, "releases": {}, "findings": {}})
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


def wanted(names: list[str], *, newest: bool, installed: bool) -> list[str]:
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
    options: argparse.Namespace, versions: list[str], worker: Part = WHOLE
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


def _request(options: argparse.Namespace, worker: Part) -> "Request":
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


def _goldens(folder: str) -> "dict[str, Case]":
    from harness.golden import BadGolden, Store, examine

    try:
        goldens, damages = examine(Store(Path(folder)).files())
    except BadGolden as error:
        raise UsageError(f"--goldens={folder}: {error}") from None
    if damages:
        raise UsageError(f"--goldens={folder}: is damaged; see `golden verify`")
    return {name: golden.vector.case for name, golden in goldens.items()}
