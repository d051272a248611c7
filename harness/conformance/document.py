"""What was found, as JSON: the conformance table is made from it, and from nothing else.

A candidate is one line, so that a change of one is seen as one.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.compare import Comparison
from harness.conformance.examined import Examined
from harness.conformance.releases import Release
from harness.conformance.stage import Stage, name_of
from harness.report.record import comparison_record
from harness.storage import write_file
from harness.untrusted import BadInput, Misfit, NotReadable, fitted, read_file, read_json

FORMAT = "conformance/1"
NAME = "conformance.json"
MOST_BYTES = 1 << 28

# By candidate; by candidate and release; and by library and bug.
Section = dict[str, dict[str, Any]]
Results = dict[str, Section]

# No page is made from these: they are for who asked, and are not kept.
UNKEPT = {"takes", "placement", "seconds", "unexamined", "leans"}
UNKEPT_OF_A_STAGE = {"known", "names", "elements"}
UNKEPT_OF_A_FAILURE = {"case", "verdict", "replay", "record"}
# Fields of a listed bug's record that its page leaves out: they depend on the machine, or its
# names say the same, since no experiments are made here.
UNKEPT_OF_A_RECORD = {"printed", "larger", "mark", "seen"}
SECTIONS = ("candidates", "releases", "findings")

# The whole of a failure is one command away.
KEPT = ("case", "verdict", "loss", "explanation", "replay")


class BadResults(BadInput):
    """The file with the results is not one."""


def read(folder: Path) -> Results:
    """What was found before; nothing where nothing was."""
    if not (folder / NAME).exists():
        return {name: {} for name in SECTIONS}
    return read_results(folder / NAME)


def read_results(path: Path) -> Results:
    """A document of results, wherever it lies."""
    try:
        document = read_json(read_file(path.resolve(), MOST_BYTES))
    except OSError as error:
        raise BadResults(f"{path}: cannot be read: {error.strerror}") from None
    except NotReadable as error:
        raise BadResults(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise BadResults(f"{path}: is not JSON; name another folder") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadResults(f"{path}: this version reads format {FORMAT!r}; name another folder")
    try:
        return {name: fitted(document.get(name, {}), Section, name) for name in SECTIONS}
    except Misfit as error:
        raise BadResults(f"{path}: {error}; name another folder") from None


def write(folder: Path, results: Results) -> None:
    """The whole file or none; it has what pages are made from, and a line for each candidate."""
    candidates = {name: _slim(record) for name, record in results["candidates"].items()}
    releases = {
        name: {version: _slim(record) for version, record in versions.items()}
        for name, versions in results["releases"].items()
    }
    findings = {
        name: _without(record, UNKEPT_OF_A_RECORD) | {"printed": {}, "larger": None}
        for name, record in results["findings"].items()
    }
    sections = zip(SECTIONS, (candidates, releases, findings), strict=True)
    parts = [_lines(name, section) for name, section in sections]
    text = ",\n".join([f'{{\n "format": {json.dumps(FORMAT)}', *parts]) + "\n}\n"
    write_file(folder / NAME, text.encode())


def _lines(kind: str, records: Mapping[str, Any]) -> str:
    lines = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(records.items()))
    return f' "{kind}": {{\n' + ",\n".join(lines) + "\n }"


def _slim(record: Mapping[str, Any]) -> dict[str, Any]:
    """One candidate, or one release of it, as it is kept."""
    slim = _without(record, UNKEPT)
    slim["listed"] = {k: _without(each, UNKEPT_OF_A_FAILURE) for k, each in slim["listed"].items()}
    if "generated" in slim:
        return slim | {"generated": _without(slim["generated"], UNKEPT_OF_A_STAGE)}
    return slim | {
        "stages": {k: _without(each, UNKEPT_OF_A_STAGE) for k, each in slim["stages"].items()},
        "failures": [_without(each, UNKEPT_OF_A_FAILURE) for each in slim["failures"]],
    }


def _without(record: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def examined_record(examined: Examined) -> dict[str, Any]:
    """One candidate."""
    return {
        "release": examined.home,
        "version": examined.version,
        "takes": examined.takes,
        "wiring": examined.wiring,
        "unexamined": examined.unexamined,
        "leans": examined.leans,
        "stages": {name: _stage(stage) for name, stage in examined.stages.items()},
        "failures": [
            {"count": count, **_kept(comparison)} for comparison, count in examined.failures
        ],
        "listed": _listed(examined.listed),
        "stale": examined.stale,
        "packages": examined.packages,
        "placement": examined.placement,
        "seconds": examined.seconds,
    }


def release_records(releases: Iterable[Release]) -> dict[str, Any]:
    """The releases of one candidate, the oldest first."""
    return {
        each.version: {"generated": _stage(each.generated), "listed": _listed(each.listed)}
        for each in releases
    }


def _listed(listed: dict[str, Comparison]) -> dict[str, Any]:
    return {key: _kept(comparison) for key, comparison in listed.items()}


def _kept(comparison: Comparison) -> dict[str, Any]:
    """What a reader of a failure needs; stacks and logs tell of the machine, and are left out."""
    if comparison.fault:
        bare = replace(comparison.fault, stacks={}, log="", logs={})
        comparison = replace(comparison, fault=bare)
    record = comparison_record(comparison)
    kept = {name: record[name] for name in KEPT}
    return {"looks": name_of(comparison), **kept, "record": record}


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "verdicts": dict(stage.verdicts),
        "situations": {situation: dict(counts) for situation, counts in stage.situations.items()},
        "wrong": dict(stage.wrong),
        "unseen_by_loss": stage.unseen_by_loss,
        "known": dict(stage.known),
        "names": {
            f"{verdict} {name}": count for (verdict, name), (_, count) in stage.first.items()
        },
        "refused": dict(stage.refused),
        "stood_in": sorted(stage.stood_in),
        "used": min(stage.used, 1e308),
        "elements": stage.elements,
    }
