"""A comparison as a JSON object."""

import dataclasses
import json
from typing import Any

from harness.anomalies import ANOMALIES
from harness.compare import Comparison
from harness.report.replay_command import replay
from harness.report.text import explain
from harness.trace import Fault, Misfit

# For each rank, a record keeps so many last collectives and so many last characters of its output.
MOST_COLLECTIVES, MOST_PRINTED = 24, 2000


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON object of a comparison: all that a program may need, and the explanation."""
    first, fault, scale = comparison.measured.first, comparison.fault, comparison.measured.scale
    record = {
        "case": str(comparison.case),
        "before": [str(case) for case in comparison.inquiry.before],
        "ranks": comparison.inquiry.ranks,
        "id": comparison.case.id,
        "candidate": comparison.candidate,
        "against": comparison.against,
        "verdict": comparison.verdict.name,
        "reason": comparison.reason,
        "elements": comparison.measured.elements,
        "unjudged": list(comparison.measured.unjudged),
        "uncompared": list(comparison.measured.uncompared),
        "stood_in": list(comparison.measured.stood_in),
        # JSON has no infinity, which is the share of an exact budget that any error uses.
        "used": min(comparison.measured.used, 1e308),
        "first": dataclasses.asdict(first) if first else None,
        "findings": [_misfit(misfit) for misfit in comparison.measured.misfits],
        "scale": dataclasses.asdict(scale) if scale else None,
        "looks": [dataclasses.asdict(look) for look in comparison.inquiry.looks],
        "seen": [dataclasses.asdict(look) for look in comparison.inquiry.seen],
        "cause": ANOMALIES[comparison.inquiry.called].cause if comparison.inquiry.looks else "",
        "keys": {
            result.key: [result.wrong, result.elements, min(result.used, 1e308)]
            for result in comparison.measured.keys
        },
        "loss": list(comparison.measured.loss) if comparison.measured.loss else None,
        "fault": _fault(fault) if fault else None,
        "printed": _ends(comparison.inquiry.logs),
        "picture": _picture(comparison),
        "columns": [dataclasses.asdict(column) for column in comparison.inquiry.columns],
        "larger": _larger(comparison.inquiry.larger),
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
    return dataclasses.asdict(comparison.inquiry.picture) if comparison.inquiry.picture else None


def _larger(comparison: Comparison | None) -> dict[str, Any] | None:
    """Return what a page shows of the failure before its case was shrunk."""
    if comparison is None:
        return None
    return {
        "case": str(comparison.case),
        "keys": {
            result.key: [result.wrong, result.elements] for result in comparison.measured.keys
        },
        "picture": _picture(comparison),
    }
