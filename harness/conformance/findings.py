"""Write the page that lists all bugs of published packages, with a link to the page of each."""

from collections.abc import Iterable

from harness.campaign.markdown import table
from harness.candidates.published.bugs import Bug, bugs
from harness.candidates.published.library import Library
from harness.conformance.upstream_reports import file_of

HEAD = """# Upstream bugs in published releases

Each listed bug of a published package has a page for its maintainers: what is wrong, where, since
when, a script that needs only their package, how it could be mended, and the smallest case that
shows it. We checked each bug twice: against the same step of the package at sp 1, or without the
part in question; and by reading its source.

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


def findings(libraries: Iterable[Library]) -> str:
    """Return the whole page."""
    listed = [(library, bug) for library in libraries for bug in bugs(library)]
    heads = ("package", "bug", "in its releases", "main branch", "reported")
    found = table(heads, (_bug_row(library, bug) for library, bug in listed))
    names = table(
        ("bug", "named", "where it differs"), (_name_row(library, bug) for library, bug in listed)
    )
    return HEAD + found + NAMES + names


def _bug_row(library: Library, bug: Bug) -> tuple[str, ...]:
    page = f"[{bug.title}]({file_of(library, bug)})"
    return library.distribution, page, _affected_releases(library, bug), bug.main, bug.link


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
