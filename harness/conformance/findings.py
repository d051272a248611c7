"""Write the page that lists all findings, and the one that lists what is no finding."""

import re
from collections.abc import Iterable

from harness.campaign.markdown import table
from harness.candidates.published.bugs import Bug, bugs
from harness.candidates.published.library import Library
from harness.conformance.upstream_reports import file_of, findings_of, with_cause

HEAD = """# Upstream bugs in published releases

Each bug has a page for the package's maintainers: what is wrong, where, since when, a script that
needs only their package, how it could be mended, and the smallest case that shows it. We checked
each bug twice: against the same step of the package at sp 1, or without the part in question; and
by reading its source. Then a second reader, who had only the page and the package, graded it:

- A: the maintainers can take it as it is, or with the reader's corrections, which are made.
- B: the bug is right. But the package's documentation calls what reaches it unsupported, or the
  reader still has a doubt about the page.
- C and D: [not-findings.md](not-findings.md) lists these. They have no page.

The second reader also read the newest release of each package, and did not run it.

`python -m harness conformance` wrote these pages, from the folders of
`harness/candidates/published/` and from `conformance.json`; so does `ci/docs.py`, without a run.

"""

NAMES = """
## Names

This is what [experiments](anomalies.md) call each bug on the first of its entries, from nothing
but losses and gradients; where experiments do not show the failure again, what its one case looks
like. We compared each name, and the reason that the harness gives for it, with the page. An empty
last column means that both say the same.

"""

CAUSES = """
## Causes that packages share

The first mend of each may serve the others.

"""

NOT_FINDINGS = """# What is no finding

The harness meets these failures in published packages as well, and calls them `KNOWN`. But a
second reader said of each that its maintainers would close a report (C), or that it is out of date
(D). Do not report them. [findings.md](findings.md) has the others, and says what the grades mean.

`python -m harness conformance` and `ci/docs.py` write this page.

"""


def findings(libraries: Iterable[Library]) -> str:
    """Return the page of what has a page of its own."""
    listed = [(library, bug) for library in libraries for bug in findings_of(library)]
    heads = ("package", "grade", "bug", "severity", "reached by", "in its releases", "precedents")
    found = table(heads, (_bug_row(library, bug) for library, bug in listed))
    names = table(
        ("bug", "named", "where it differs"), (_name_row(library, bug) for library, bug in listed)
    )
    causes = dict.fromkeys(bug.cause for _, bug in listed if bug.cause)
    shared = table(("cause", "bugs"), ((cause, _links(cause)) for cause in causes))
    return HEAD + found + CAUSES + shared + NAMES + names


def not_findings(libraries: Iterable[Library]) -> str:
    """Return the page of all other listed bugs, each with the reason why it is no finding."""
    rows = (
        (library.distribution, bug.grade, bug.title, bug.graded)
        for library in libraries
        for bug in bugs(library)
        if not bug.is_finding
    )
    return NOT_FINDINGS + table(("package", "grade", "what happens", "why it is no finding"), rows)


def _bug_row(library: Library, bug: Bug) -> tuple[str, ...]:
    page = f"[{bug.title}]({file_of(library, bug)})"
    releases = _affected_releases(library, bug)
    return (
        library.distribution,
        bug.grade,
        page,
        bug.severity,
        bug.reach,
        releases,
        ", ".join(map(_linked, bug.reported)),
    )


def _links(cause: str) -> str:
    """Return links to all pages with a cause."""
    return ", ".join(
        f"[{library.distribution}: {bug.key}]({file_of(library, bug)})"
        for library, bug in with_cause(cause)
    )


def _linked(address: str) -> str:
    """Return a link to an issue or a pull request, with its repository and number as its text."""
    found = re.fullmatch(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)", address)
    return f"[{found[1]}#{found[2]}]({address})" if found else address


def _name_row(library: Library, bug: Bug) -> tuple[str, str, str]:
    """Return a bug, the name that experiments give it, and how that differs from its page."""
    label = f"{library.distribution}: {bug.key}"
    if bug.named:
        return label, f"`{bug.named}`", bug.differs
    return label, "", f"Not diagnosed: gone in {library.pinned}."


def _affected_releases(library: Library, bug: Bug) -> str:
    if bug.fixed:
        return f"{bug.since or 'earlier'}, not in {bug.fixed}"
    return f"{bug.since or library.pinned}, in {library.pinned} still there"
