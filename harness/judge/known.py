"""A divergence that is listed upstream is known: it is no pass, and no news either."""

from dataclasses import replace

from harness.candidates import locate
from harness.candidates.published.bugs import Bug, bugs
from harness.compare import Comparison, Verdict
from harness.generation.situations.needs import lacking


def listed(comparison: Comparison) -> Bug | None:
    """The bug that a failure of a published candidate is taken for."""
    named = locate(comparison.candidate)
    if named.environment is None:
        return None
    release = named.environment.release
    return next(
        (
            bug
            for bug in bugs(named.environment.library)
            if named.attribute in bug.candidate
            and bug.is_in(release)
            and comparison.called in bug.looks
            and not lacking(comparison.case, bug.when)
        ),
        None,
    )


def recognised(comparison: Comparison) -> Comparison:
    """The same, or KNOWN with the reason where it is listed."""
    if not comparison.verdict.failed:
        return comparison
    bug = listed(comparison)
    if bug is None:
        return comparison
    return replace(
        comparison, verdict=Verdict.KNOWN, reason=" ".join(filter(None, (bug.key, bug.link)))
    )
