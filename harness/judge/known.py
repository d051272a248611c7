"""Recognises failures that a listed bug of a published package explains: their verdict is KNOWN.

The name of a failure is not enough evidence, because a listed bug may hide a second one. So the
step is run once more with all its listed bugs mended, and must be right then. The name decides
only for releases without mends; for others it picks one of several listed bugs.
"""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from harness.candidates import Named, locate
from harness.candidates.published.bugs import Bug, bugs
from harness.compare import Comparison, Verdict
from harness.generation.situations.needs import lacking
from harness.trace import GRADIENT


def listed_bug(comparison: Comparison) -> Bug | None:
    """Return the listed bug that explains a failure of a published candidate, or None."""
    bugs_of_case = list(_bugs_of_case(comparison))
    if not _can_explain(comparison, bugs_of_case):
        return None
    named = (bug for bug in bugs_of_case if comparison.inquiry.seen_as in bug.looks)
    # A fault need not come from the candidate, so it is a bug's only if the bug lists its name.
    mendable = (
        bug for bug in bugs_of_case if comparison.fault is None and _has_mend(comparison, bug)
    )
    return next(named, None) or next(mendable, None)


def _can_explain(comparison: Comparison, bugs_of_case: list[Bug]) -> bool:
    """Return whether these bugs can make all the tensors wrong that are wrong."""
    patterns = [pattern for bug in bugs_of_case for pattern in bug.tensors]
    if comparison.case.steps > 1 and any(pattern.startswith(GRADIENT) for pattern in patterns):
        # Wrong gradients of an earlier step change the weights, and then every tensor is wrong.
        return True
    wrong = [result.key for result in comparison.measured.keys if result.wrong]
    return all(any(fnmatchcase(key, pattern) for pattern in patterns) for key in wrong)


def mended_candidate(comparison: Comparison) -> Named | None:
    """Return the candidate with every bug mended that its case may show.

    Returns None if no listed bug explains the failure, or if that bug has no mend in this
    release: only the pinned release has mends.
    """
    bug = listed_bug(comparison)
    mends = [other.key for other in _bugs_of_case(comparison) if _has_mend(comparison, other)]
    if bug is None or bug.key not in mends:
        return None
    name, at, version = comparison.candidate.partition("@")
    return locate("+".join((name, *mends)) + at + version)


def mark_known(comparison: Comparison) -> Comparison:
    """Return the comparison, as KNOWN with the bug as its reason if nothing else is wrong."""
    if not comparison.verdict.failed:
        return comparison
    bug, mended = listed_bug(comparison), comparison.inquiry.mended
    is_right_without = mended is not None and mended.verdict.passed
    # If the mended step did not run, another bug may hide behind the listed one.
    if bug is None or (mended_candidate(comparison) and not is_right_without):
        return comparison
    return replace(
        comparison, verdict=Verdict.KNOWN, reason=" ".join((bug.key, *bug.reported[:1]))
    )


def _has_mend(comparison: Comparison, bug: Bug) -> bool:
    """Return whether the candidate can be run without this bug."""
    environment = locate(comparison.candidate).environment
    if environment is None or environment.release != environment.library.pinned:
        return False
    return bug.key in environment.library.mends


def _bugs_of_case(comparison: Comparison) -> Iterator[Bug]:
    """Yield the listed bugs of the candidate that can show on the case."""
    named = locate(comparison.candidate)
    if named.environment is None:
        return
    release = named.environment.release
    for bug in bugs(named.environment.library):
        has_bug = named.attribute in bug.candidate and bug.is_in(release)
        if has_bug and not lacking(comparison.case, bug.when):
            yield bug
