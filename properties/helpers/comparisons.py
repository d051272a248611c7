"""Comparisons made by hand: fields of a measurement and of an inquiry, each by its name alone."""

from dataclasses import fields, replace
from typing import Any

from harness.case import Case
from harness.compare import Comparison, Inquiry, Measurement
from harness.verdict import Verdict


def comparison_with(*, case: Case, candidate: str, verdict: Verdict, **values: Any) -> Comparison:
    """Make a comparison; each further value goes where its name belongs."""
    return changed(Comparison(case=case, candidate=candidate, verdict=verdict), **values)


def changed(comparison: Comparison, **values: Any) -> Comparison:
    """Return a copy with these values; each goes where its name belongs."""
    measured = {f.name: values.pop(f.name) for f in fields(Measurement) if f.name in values}
    inquiry = {f.name: values.pop(f.name) for f in fields(Inquiry) if f.name in values}
    return replace(
        comparison,
        measured=replace(comparison.measured, **measured),
        inquiry=replace(comparison.inquiry, **inquiry),
        **values,
    )
