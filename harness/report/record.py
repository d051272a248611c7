"""A comparison as a JSON object."""

import dataclasses
import json
from typing import Any

from harness.anomalies import ANOMALIES
from harness.compare import Comparison
from harness.report.text import explain, replay
from harness.trace import Fault, Misfit

# For each rank, a record keeps so many last collectives and so many last characters of its output.
MOST_COLLECTIVES, MOST_PRINTED = 24, 2000


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON object of a comparison: all that a program may need, and the explanation."""
    first, fault, scale = comparison.first, comparison.fault, comparison.scale
    record = {
        "case": str(comparison.case),
        "before": [str(case) for case in comparison.before],
        "ranks": comparison.ranks,
        "id": comparison.case.id,
        "candidate": comparison.candidate,
        "against": comparison.against,
        "verdict": comparison.verdict.name,
        "reason": comparison.reason,
        "elements": comparison.elements,
        "unjudged": list(comparison.unjudged),
        "uncompared": list(comparison.uncompared),
        "stood_in": list(comparison.stood_in),
        # JSON has no infinity, which is the share of an exact budget that any error uses.
        "used": min(comparison.used, 1e308),
        "first": dataclasses.asdict(first) if first else None,
        "findings": [_misfit(misfit) for misfit in comparison.misfits],
        "scale": dataclasses.asdict(scale) if scale else None,
        "looks": [dataclasses.asdict(look) for look in comparison.looks],
        "seen": [dataclasses.asdict(look) for look in comparison.seen],
        "cause": ANOMALIES[comparison.called].cause if comparison.looks else "",
        "keys": {
            result.key: [result.wrong, result.elements, min(result.used, 1e308)]
            for result in comparison.keys
        },
        "loss": list(comparison.loss) if comparison.loss else None,
        "fault": _fault(fault) if fault else None,
        "printed": _ends(comparison.logs),
        "picture": _picture(comparison),
        "columns": [dataclasses.asdict(column) for column in comparison.columns],
        "larger": _larger(comparison.larger),
        "explanation": explain(comparison),
        "replay": replay(comparison),
    }
    # As a program reads it: keys are strings, and tuples are lists.
    as_read: dict[str, Any] = json.loads(json.dumps(record))
    return as_read


def _misfit(misfit: Misfit) -> dict[str, Any]:
    fields = dataclasses.asdict(misfit)
    return {"misfit": fields.pop("kind"), **fields}


def _fault(fault: Fault) -> dict[str, Any]:
    fields = dataclasses.asdict(fault)
    # A bundle keeps the whole logs and collectives.
    collectives = {
        rank: entered[-MOST_COLLECTIVES:] for rank, entered in fields.pop("collectives").items()
    }
    return {**fields, "logs": _ends(fault.logs), "collectives": collectives}


def _ends(printed: dict[int, str]) -> dict[int, str]:
    return {rank: text[-MOST_PRINTED:] for rank, text in printed.items()}


def _picture(comparison: Comparison) -> dict[str, Any] | None:
    return dataclasses.asdict(comparison.picture) if comparison.picture else None


def _larger(comparison: Comparison | None) -> dict[str, Any] | None:
    """Return what a page shows of the failure before its case was shrunk."""
    if comparison is None:
        return None
    return {
        "case": str(comparison.case),
        "keys": {result.key: [result.wrong, result.elements] for result in comparison.keys},
        "picture": _picture(comparison),
    }
