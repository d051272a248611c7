"""A divergence that is listed upstream is known: it is no pass, and no news either.

What it is called is not enough: behind a bug that makes everything wrong there may be a second
one. The step is run once more with all that is listed of it mended, and has to be right then.
That decides; a name tells which of several bugs it is, and decides only where there are no mends.
"""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from harness.candidates import Named, locate
from harness.candidates.published.bugs import Bug, bugs
from harness.compare import Comparison, Verdict
from harness.generation.situations.needs import lacking
from harness.trace import GRADIENT


def listed(comparison: Comparison) -> Bug | None:
    """The bug that a failure of a published candidate is taken for."""
    there = list(_there(comparison))
    if not _all_listed(comparison, there):
        return None
    named = (bug for bug in there if comparison.seen_as in bug.looks)
    # A fault may be nobody's: no other name of it is taken for that of a bug.
    mended = (bug for bug in there if comparison.fault is None and _has_mend(comparison, bug))
    return next(named, None) or next(mended, None)


def _all_listed(comparison: Comparison, there: list[Bug]) -> bool:
    """Whether these bugs can make wrong all that is wrong."""
    patterns = [pattern for bug in there for pattern in bug.tensors]
    if comparison.case.steps > 1 and any(each.startswith(GRADIENT) for each in patterns):
        # The last step is compared, and its weights are what wrong gradients have made.
        return True
    wrong = [result.key for result in comparison.keys if result.wrong]
    return all(any(fnmatchcase(key, pattern) for pattern in patterns) for key in wrong)


def without_what_is_listed(comparison: Comparison) -> Named | None:
    """Return the candidate with every bug mended that its case may show.

    None if it shows none that is listed, or if the release has no mends: only the pinned one has.
    """
    bug = listed(comparison)
    mended = [other.key for other in _there(comparison) if _has_mend(comparison, other)]
    if bug is None or bug.key not in mended:
        return None
    name, at, version = comparison.candidate.partition("@")
    return locate("+".join((name, *mended)) + at + version)


def recognised(comparison: Comparison) -> Comparison:
    """Make it KNOWN, with the reason, if it is listed and nothing else is wrong."""
    if not comparison.verdict.failed:
        return comparison
    bug, mended = listed(comparison), comparison.mended
    is_right_without = mended is not None and mended.verdict.passed
    # If the mended step was not asked, another bug may hide behind the listed one.
    if bug is None or (without_what_is_listed(comparison) and not is_right_without):
        return comparison
    return replace(
        comparison, verdict=Verdict.KNOWN, reason=" ".join(filter(None, (bug.key, bug.link)))
    )


def _has_mend(comparison: Comparison, bug: Bug) -> bool:
    """Whether its candidate can be run without it."""
    environment = locate(comparison.candidate).environment
    if environment is None or environment.release != environment.library.pinned:
        return False
    return bug.key in environment.library.mends


def _there(comparison: Comparison) -> Iterator[Bug]:
    """What is listed of the candidate and can show on the case."""
    named = locate(comparison.candidate)
    if named.environment is None:
        return
    release = named.environment.release
    for bug in bugs(named.environment.library):
        is_of_it = named.attribute in bug.candidate and bug.is_in(release)
        if is_of_it and not lacking(comparison.case, bug.when):
            yield bug
