"""Failures and campaigns made by hand, for tests of pages; no rank runs, no model is built."""

from typing import Any

from harness.case import Case, parse
from harness.compare import Comparison, KeyResult, Look, Verdict
from harness.compare.picture import Numbers, Picture, TokenMap
from harness.report import comparison_record
from properties.helpers.comparisons import comparison_with

HOSTILE = '<script>alert(1)</script>\x1b[31m\u202e\' onload="x" {{ 7*7 }}'
CASE = parse("case/1 rows=5:11011,2:11:left heads=2 layers=1 vocab=16 sp=2 dim=4")
SIGNS = "00-0800"


def pictured(case: Case = CASE, signs: str = SIGNS, **fields: Any) -> Comparison:
    """Make a divergence of labels, with its picture."""
    tokens = range(case.tokens)
    picture = Picture(
        owners=((0, 0), (case.tokens // 2, 1)),
        computed=(case.tokens // 2, case.tokens - case.tokens // 2 + 2),
        maps=(TokenMap("labels", signs), TokenMap("layers.0.attn.q", signs, (signs, signs))),
        numbers=(Numbers("labels", tuple(tokens), tuple(n + (n == 4) for n in tokens)),)
        if case.tokens < 100
        else (),
        ratios={"grad.head": 0.5, "grad.norm": 1.0},
    )
    results = (
        KeyResult("labels", 6, 1, 9e60),
        KeyResult("grad.head", 8, 8, 3e9),
        KeyResult("grad.norm", 4, 0, 0.1),
    )
    return comparison_with(
        case=case,
        candidate="mine.py:MINE",
        verdict=Verdict.DIVERGED,
        keys=results,
        picture=picture,
        seen=(Look("label-rolled-locally", "the label is the shard's own first"),),
        **fields,
    )


def campaign() -> dict[str, Any]:
    """Make the document that `check --json` prints for one candidate that failed."""
    failure = {**comparison_record(pictured()), "bundle": ".harness/failures/x"}
    tally = {
        "verdict": "DIVERGED",
        "judged": 4,
        "verdicts": {"WITHIN": 3, "DIVERGED": 1, "UNSUPPORTED": 5},
        "refused": {"window": 2},
        "unjudgeable": {"bf16": {"grad.head": 3}},
        "known": {},
        "elements": 1234,
        "used": 0.25,
        "histogram": {"fp64": {"counts": [1, 0, 1, 0, 1, 0, 0], "most": 0.25}},
        "situations": {"left-padded row": {"WITHIN": 2, "DIVERGED": 1}},
        "pace": {"8": {"cases": 4, "seconds": 0.5, "most": 0.2}},
        "failures": [failure],
    }
    return {
        "campaign": {"candidates": ["mine.py:MINE"], "seed": 0},
        "versions": {"torch": "2"},
        "shards": {"of": 1, "examined": [1], "missing": []},
        "placement": {"device": "cpu"},
        "ended": "",
        "verdict": "DIVERGED",
        "cases": 4,
        "seconds": 0.5,
        "situations": {"left-padded row": 3, "one-token row": 0},
        "buckets": [0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0],
        "candidates": {"mine.py:MINE": tally},
    }
