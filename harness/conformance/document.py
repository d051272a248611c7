"""What was found, as JSON: the conformance table is made from it, and from nothing else."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.compare import Comparison
from harness.conformance.examined import Examined
from harness.conformance.sweep import Release
from harness.conformance.tally import Tally, name_of
from harness.refusal import BadInput
from harness.report.record import comparison_record

FORMAT = "conformance/1"
NAME = "conformance.json"

# By candidate; and by candidate and release.
Results = dict[str, dict[str, Any]]

# The whole of a failure is one command away.
KEPT = ("case", "verdict", "loss", "explanation", "replay")


class BadResults(BadInput):
    """The file with the results is not one."""


def read(folder: Path) -> Results:
    """What was found before; nothing where nothing was."""
    path = folder / NAME
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {"candidates": {}, "releases": {}}
    except ValueError as error:
        raise BadResults(f"{path}: is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadResults(f"{path}: this version reads format {FORMAT!r}; name another folder")
    return {name: document[name] for name in ("candidates", "releases")}


def write(folder: Path, results: Results) -> None:
    """The whole file or none."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = {name: dict(sorted(found.items())) for name, found in results.items()}
    draft = folder / f"{NAME}.partial"
    draft.write_text(json.dumps({"format": FORMAT, **ordered}, indent=1) + "\n")
    draft.rename(folder / NAME)


def examined_record(found: Examined) -> dict[str, Any]:
    """One candidate."""
    return {
        "release": found.home,
        "version": found.version,
        "takes": found.takes,
        "wiring": found.wiring,
        "stages": {name: _tally(tally) for name, tally in found.stages.items()},
        "failures": [
            {"count": count, "looks": name_of(comparison), **_kept(comparison)}
            for comparison, count in found.failures
        ],
        "listed": _listed(found.listed),
        "stale": found.stale,
        "packages": found.packages,
        "placement": found.placement,
        "seconds": found.seconds,
    }


def release_records(found: Iterable[Release]) -> dict[str, Any]:
    """The releases of one candidate, the oldest first."""
    return {
        release.version: {"generated": _tally(release.tally), "listed": _listed(release.listed)}
        for release in found
    }


def _listed(found: dict[str, Comparison]) -> dict[str, Any]:
    return {
        key: {"looks": name_of(comparison), **_kept(comparison)}
        for key, comparison in found.items()
    }


def _kept(comparison: Comparison) -> dict[str, Any]:
    """What a reader of a failure needs; stacks and logs tell of the machine, and are left out."""
    if comparison.fault:
        bare = replace(comparison.fault, stacks={}, log="")
        comparison = replace(comparison, fault=bare)
    record = comparison_record(comparison)
    return {name: record[name] for name in KEPT}


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "verdicts": dict(tally.verdicts),
        "corners": {corner: dict(counts) for corner, counts in tally.corners.items()},
        "wrong": dict(tally.wrong),
        "unseen_by_loss": tally.unseen_by_loss,
        "known": dict(tally.known),
        "names": {
            f"{verdict} {name}": count for (verdict, name), (_, count) in tally.first.items()
        },
        "refused": dict(tally.refused),
        "stood_in": sorted(tally.stood_in),
        "used": min(tally.used, 1e308),
        "elements": tally.elements,
    }
