"""Describe an unclassified failure: which names are excluded, and which change makes it right."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harness.case import Case, InvalidCase, Row
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import plain_passes
from harness.diagnosis.hypotheses import variants


def describe_excluded(wrong: Sequence[Evidence]) -> str:
    """List the names of all hypotheses; none of them explains these cases."""
    smallest = _smallest(wrong)
    streams = plain_passes(smallest.case, smallest.owner_n)
    names = {name for stream in streams for name, _, _ in variants(stream)}
    return f"it is none of {', '.join(sorted(names))}"


def describe_when_right(wrong: Sequence[Evidence], ask: Callable[[Case], Evidence | None]) -> str:
    """Describe a wrong case and the features without which it is right; or an empty text."""
    case = _smallest(wrong).case
    right = [how for how, other in _without_one_feature(case) if _is_right(ask(other))]
    return f"{case} goes wrong, and is right {' or '.join(right)}" if right else ""


def _smallest(wrong: Sequence[Evidence]) -> Evidence:
    return min(wrong, key=lambda evidence: evidence.case.tokens)


def _is_right(evidence: Evidence | None) -> bool:
    return evidence is not None and evidence.comparison.verdict.passed


def _without_one_feature(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case without one of its features, each in turn, with a description of it."""
    all_targets = tuple(Row("1" * len(row), row.side) for row in case.rows)
    right_padded = tuple(Row(row.mask, "right") for row in case.rows)
    for how, change in (
        ("without a window", {"window": None}),
        ("in one micro-batch", {"micro_batches": 1}),
        ("with as many kv heads as heads", {"kv_heads": case.heads}),
        ("with one replica", {"dp": 1}),
        ("with every token a target", {"rows": all_targets}),
        ("without left padding", {"rows": right_padded}),
        ("with one row", {"rows": case.rows[:1], "ids": case.ids and case.ids[:1]}),
        ("with one layer", {"layers": 1}),
        ("after one step", {"steps": 1}),
        ("with an embedding of its own", {"tied": False}),
        ("on one rank", {"sp": 1}),
    ):
        try:
            other = replace(case, **change)
        except InvalidCase:
            continue
        if other != case:
            yield how, other
