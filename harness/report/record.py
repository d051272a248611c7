"""A comparison as a JSON object."""

import dataclasses
import json
from typing import Any

from harness.compare import Comparison
from harness.report.text import explain, replay
from harness.trace import Fault, Misfit


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Everything a machine may want to know, and the text for people."""
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
        "stood_in": list(comparison.stood_in),
        # JSON has no infinity; an element outside an exact budget has used all of it.
        "used": min(comparison.used, 1e308),
        "first": dataclasses.asdict(first) if first else None,
        "findings": [_misfit(misfit) for misfit in comparison.misfits],
        "scale": dataclasses.asdict(scale) if scale else None,
        "looks": [dataclasses.asdict(look) for look in comparison.looks],
        "diagnosis": [dataclasses.asdict(look) for look in comparison.diagnosis],
        "keys": {result.key: [result.wrong, result.elements] for result in comparison.keys},
        "loss": list(comparison.loss) if comparison.loss else None,
        "fault": _fault(fault) if fault else None,
        "explanation": explain(comparison),
        "replay": replay(comparison),
    }
    # As a program will read it: names are strings, and tuples are lists.
    as_read: dict[str, Any] = json.loads(json.dumps(record))
    return as_read


def _misfit(misfit: Misfit) -> dict[str, Any]:
    fields = dataclasses.asdict(misfit)
    return {"misfit": fields.pop("kind"), **fields}


def _fault(fault: Fault) -> dict[str, Any]:
    # All that every rank printed and entered is for a bundle.
    whole = dataclasses.asdict(fault)
    return {name: whole[name] for name in whole if name not in ("logs", "collectives")}
