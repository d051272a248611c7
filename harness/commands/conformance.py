"""`conformance`: published implementations, judged and written down."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.commands.options import (
    DIVERGED,
    FAULT,
    PASSED,
    UsageError,
    answer,
    ready_to_report,
    report_option,
)

if TYPE_CHECKING:
    from harness.candidates.published.library import Library
    from harness.case import Case
    from harness.conformance import Results

HELP = "judge published packages, and write the tables"


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

    from harness.conformance import finding_record, read, write

    out = Path(options.out)
    results, before = so_far(out), _before(options)
    records: dict[str, Any] = {}
    for name in names:
        records[name] = _sweep(name, versions, options) if versions else _examine(name, options)
        if not versions:
            library = name.partition(".")[0]
            for key, found in records[name]["listed"].items():
                results["findings"][f"{library} {key}"] = finding_record(key, found["record"])
        # Kept at once: hours of work are not to be lost with the last candidate.
        results["releases" if versions else "candidates"][name] = records[name]
        write(out, results)
    for file, text in pages(read(out)).items():
        (out / file).parent.mkdir(exist_ok=True)
        (out / file).write_text(text)
    if before is not None:
        _tell_changes(before, records, out)
    status = _status(records, sweeping=bool(versions))
    return answer(options, {"found": records}, status, read(out))


def so_far(out: Path) -> "Results":
    """What was found before, if pages can be made from it: after hours it is late to see that."""
    from harness.conformance import BadResults, read
    from harness.outside import BadInput

    results = read(out)
    try:
        pages(results)
    except BadInput:
        # Of a folder, not of the results: it says which.
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


def pages(results: "Results") -> dict[str, str]:
    """By the name of its file."""
    from harness.candidates.published.library import libraries
    from harness.conformance import findings, letters, page

    known = libraries().values()
    listed = {"conformance.md": page(results), "findings.md": findings(known)}
    return {**listed, **dict(letters(known, results))}


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


def _request(options: argparse.Namespace) -> Any:
    from harness.conformance import Request
    from harness.ranks.device import NoPlace, choose

    try:
        placement = choose(options.device, options.transport, 4)
    except NoPlace as error:
        raise UsageError(f"--{error}") from None
    return Request(options.cases, options.seed, placement, options.deadline)


def _examine(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from harness.conformance import examine, examined_record
    from harness.conformance.stage import name_of

    examined = examine(name, _goldens(options.goldens), _request(options))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in examined.verdicts.items())
    reasons = examined.wiring, *examined.unexamined, *examined.leans
    why = "".join(f"; {each}" for each in reasons if each)
    print(f"{name}: {counts}{why}, {examined.seconds:.0f} s", file=sys.stderr)  # noqa: T201
    for failure, count in examined.failures:
        print(f"  {count} x {name_of(failure)}: {failure.case}", file=sys.stderr)  # noqa: T201
    return examined_record(examined)


def _sweep(name: str, versions: list[str], options: argparse.Namespace) -> dict[str, Any]:
    from harness.conformance import release_records, sweep

    return release_records(sweep(name, versions, _request(options)))


def _goldens(folder: str) -> "dict[str, Case]":
    from harness.golden import BadGolden, Store, examine

    try:
        goldens, damages = examine(Store(Path(folder)).files())
    except BadGolden as error:
        raise UsageError(f"--goldens={folder}: {error}") from None
    if damages:
        raise UsageError(f"--goldens={folder}: is damaged; see `golden verify`")
    return {name: golden.vector.case for name, golden in goldens.items()}
