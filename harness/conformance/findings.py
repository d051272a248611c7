"""What was found in published releases, as one would tell their maintainers."""

from collections.abc import Iterable, Mapping
from typing import Any

from harness.campaign.markdown import table
from harness.candidates.published.bugs import Bug, bugs
from harness.candidates.published.library import Library, libraries
from harness.conformance.document import Results

HEAD = """# Upstream bugs in published releases

These are the listed bugs of published packages, each on the smallest case that shows it. We
checked each bug twice: against the same step of the package at sp 1, or without the part in
question; and by reading its source. `--script FILE` after a command writes one file for a bug
report, of at most 200 lines: the step with its calls of the library, the case, and the numbers
that are wrong.

`python -m harness conformance` wrote this page, from `known.toml` in the folders of
`harness/candidates/published/` and from `conformance.json`; so does `ci/docs.py`, without a run.
"""

NAMES = """## Names

This is what [experiments](anomalies.md) call each bug on the first of its entries, from nothing
but losses and gradients; where experiments do not show the failure again, what its one case looks
like. We compared each name, and the reason that the harness gives for it, with the description
below. An empty last column means that both say the same. Further down, `looks` is what one case
looks like with all that its candidate shows.
"""


def findings(libraries: Iterable[Library], results: Results) -> str:
    """The whole page."""
    listed = [(library, bug) for library in libraries for bug in bugs(library)]
    heads = ("bug", "named", "where it differs")
    names = table(heads, (_name(library, bug) for library, bug in listed))
    parts = (_finding(library, bug, _seen(library, bug, results)) for library, bug in listed)
    return "\n".join([HEAD, NAMES, names, *parts])


def _name(library: Library, bug: Bug) -> tuple[str, str, str]:
    """What experiments call it, and where that is not what is said of it."""
    whose = f"{library.distribution}: {bug.key}"
    if bug.named:
        return whose, f"`{bug.named}`", bug.differs
    return whose, "", f"Not diagnosed: gone in {library.pinned}."


def facts_of(library: Library, bug: Bug) -> dict[str, str]:
    """Where it is, where it shows, and what is known of it."""
    return {
        "where": bug.where,
        "in": ", ".join(f"{library.name}.{key}" for key in bug.candidate),
        "when": ", ".join(bug.when) or "always",
        "since": _since(library, bug),
        "reported": bug.link or "no report was found",
        "golden": bug.golden,
    }


def finding_record(key: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    """What a page of a listed bug is made from: what it comes to, and what is known of it."""
    library = libraries()[seen["candidate"].partition(".")[0]]
    (bug,) = (bug for bug in bugs(library) if bug.key == key)
    script = f"{seen['replay']} --script report.py"
    known = {"says": bug.says, **facts_of(library, bug), "as a script": script}
    return {**seen, "known": known}


def _finding(library: Library, bug: Bug, seen: Mapping[str, Any] | None) -> str:
    facts = facts_of(library, bug)
    facts |= {name: f"`{facts[name]}`" for name in ("where", "golden")}
    facts["in"] = ", ".join(f"`{name}`" for name in facts["in"].split(", "))
    lines = [f"## {library.distribution}: {bug.key}\n", f"{bug.says}\n"]
    lines += [f"- {name}: {fact}" for name, fact in facts.items()]
    if seen:
        lines += ["", "```", seen["explanation"], "```"]
        if seen["loss"]:
            expected, got = seen["loss"]
            lines += ["", f"Loss expected {expected:.9g}, got {got:.9g}."]
    else:
        lines += ["", f"Not run here; its case is `{bug.line}`."]
    return "\n".join(lines) + "\n"


def _since(library: Library, bug: Bug) -> str:
    if bug.fixed:
        return f"seen {f'in {bug.since}' if bug.since else 'earlier'}, not in {bug.fixed}"
    return f"seen in {bug.since or library.pinned}; in {library.pinned} still there"


def _seen(library: Library, bug: Bug, results: Results) -> Mapping[str, Any] | None:
    """What it came to in the first of its entries where it was seen."""
    candidates, releases = results["candidates"], results["releases"]
    records: list[Mapping[str, Any]] = []
    for name in (f"{library.name}.{key}" for key in bug.candidate):
        records += [candidates[name]] if name in candidates else []
        records += releases.get(name, {}).values()
    for each in records:
        listed: Mapping[str, Any] | None = each["listed"].get(bug.key)
        if listed and listed["looks"] in bug.looks:
            return listed
    return None
