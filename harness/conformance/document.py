"""The results as a JSON document; all pages are made from it, and from nothing else.

Each candidate is one line of the file, so a diff shows which candidates changed.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.compare import Comparison
from harness.conformance.examined import Examined
from harness.conformance.releases import Release
from harness.conformance.stage import Stage, failure_name
from harness.report.record import comparison_record
from harness.storage import write_file
from harness.untrusted import BadInput, Misfit, NotReadable, fitted, read_file, read_json

FORMAT = "conformance/1"
NAME = "conformance.json"
MOST_BYTES = 1 << 28

# A record by candidate, by candidate and release, or by library and bug.
Section = dict[str, dict[str, Any]]
Results = dict[str, Section]

# Fields that no page needs: the command reports them, and the file leaves them out.
DROPPED = {"takes", "placement", "seconds", "unexamined", "leans"}
DROPPED_OF_A_STAGE = {"known", "names", "elements"}
DROPPED_OF_A_FAILURE = {"case", "verdict", "replay", "record"}
# Fields of a finding's record that its page leaves out. They depend on the machine, or repeat
# `looks`, because conformance makes no experiments.
DROPPED_OF_A_FINDING = {"printed", "larger", "mark", "seen"}
SECTIONS = ("candidates", "releases", "findings")

# Fields of a comparison that are kept; its `replay` command shows the others.
KEPT = ("case", "verdict", "loss", "explanation", "replay")


class BadResults(BadInput):
    """The file has no results; the message names it and the reason."""


def read(folder: Path) -> Results:
    """Read the results in a folder; return empty ones if it has none."""
    if not (folder / NAME).exists():
        return {name: {} for name in SECTIONS}
    return read_results(folder / NAME)


def read_results(path: Path) -> Results:
    """Read a document of results; raise `BadResults` if it is none."""
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
    """Write the fields that pages need, a line for each candidate: the whole file or nothing."""
    candidates = {name: _slim(record) for name, record in results["candidates"].items()}
    releases = {
        name: {version: _slim(record) for version, record in versions.items()}
        for name, versions in results["releases"].items()
    }
    findings = {
        name: _without(record, DROPPED_OF_A_FINDING) | {"printed": {}, "larger": None}
        for name, record in results["findings"].items()
    }
    sections = zip(SECTIONS, (candidates, releases, findings), strict=True)
    parts = [_lines(name, section) for name, section in sections]
    text = ",\n".join([f'{{\n "format": {json.dumps(FORMAT)}', *parts]) + "\n}\n"
    write_file(folder / NAME, text.encode())


def _lines(section: str, records: Mapping[str, Any]) -> str:
    """Return a section of the document as text, with a line for each record."""
    items = sorted(records.items())
    lines = (f"  {json.dumps(name)}: {json.dumps(record)}" for name, record in items)
    return f' "{section}": {{\n' + ",\n".join(lines) + "\n }"


def _slim(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a candidate, or of one release of it, as the file keeps it."""
    slim = _without(record, DROPPED)
    slim["listed"] = {
        key: _without(failure, DROPPED_OF_A_FAILURE) for key, failure in slim["listed"].items()
    }
    if "generated" in slim:
        return slim | {"generated": _without(slim["generated"], DROPPED_OF_A_STAGE)}
    return slim | {
        "stages": {
            name: _without(stage, DROPPED_OF_A_STAGE) for name, stage in slim["stages"].items()
        },
        "failures": [_without(failure, DROPPED_OF_A_FAILURE) for failure in slim["failures"]],
    }


def _without(record: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def examined_record(examined: Examined) -> dict[str, Any]:
    """Return the whole record of one candidate."""
    return {
        "release": examined.home,
        "version": examined.version,
        "takes": examined.takes,
        "wiring": examined.wiring,
        "unexamined": examined.unexamined,
        "leans": examined.leans,
        "stages": {name: _stage_record(stage) for name, stage in examined.stages.items()},
        "failures": [
            {"count": count, **_failure_record(comparison)}
            for comparison, count in examined.failures
        ],
        "listed": _listed_records(examined.listed),
        "stale": examined.stale,
        "packages": examined.packages,
        "placement": examined.placement,
        "seconds": examined.seconds,
    }


def release_records(releases: Iterable[Release]) -> dict[str, Any]:
    """Return the records of the releases of one candidate, by version, in their order."""
    return {
        release.version: {
            "generated": _stage_record(release.generated),
            "listed": _listed_records(release.listed),
        }
        for release in releases
    }


def _listed_records(listed: dict[str, Comparison]) -> dict[str, Any]:
    return {key: _failure_record(comparison) for key, comparison in listed.items()}


def _failure_record(comparison: Comparison) -> dict[str, Any]:
    """Return what a reader of a failure needs, without stacks and logs of the machine."""
    if comparison.fault:
        bare = replace(comparison.fault, stacks={}, log="", logs={})
        comparison = replace(comparison, fault=bare)
    record = comparison_record(comparison)
    kept = {name: record[name] for name in KEPT}
    return {"looks": failure_name(comparison), **kept, "record": record}


def _stage_record(stage: Stage) -> dict[str, Any]:
    """Return the record of a stage; JSON has no infinity for an error beyond every budget."""
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
