"""Write a page about each listed bug that is a finding, for the maintainers of the library."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.candidates.published.bugs import Bug, about, bugs
from harness.candidates.published.library import Library, libraries
from harness.conformance.document import Results
from harness.conformance.gpu_scripts import gpu_script_section
from harness.conformance.scripts import FOLDER, script_section
from harness.conformance.upstream_patches import upstream_mend_section
from harness.conformance.upstream_tests import upstream_test_section

TERMS = (
    "The harness compares the released step, on as many ranks as its case says, with plain "
    "training in one process, on the same batch and weights. Below, a candidate is a step under "
    "test, sp the number of ranks that share a sequence, and dp the number of replicas."
)
# What a page says about the files beside it, in this order.
SECTIONS = (script_section, gpu_script_section, upstream_mend_section, upstream_test_section)


def upstream_reports(
    libraries: Iterable[Library], results: Results, docs: Path
) -> Iterator[tuple[str, str]]:
    """Yield the file of each page, from the folder `docs`, and its text."""
    for library in libraries:
        for bug in findings_of(library):
            found = first_sighting(library, bug, results)
            beside = [part for section in SECTIONS for part in section(library, bug, docs)]
            yield file_of(library, bug), upstream_report(library, bug, found, beside)


def findings_of(library: Library) -> list[Bug]:
    """Return the listed bugs of a library that have a page."""
    return [bug for bug in bugs(library) if bug.is_finding]


def with_cause(cause: str) -> list[tuple[Library, Bug]]:
    """Return all findings that have this cause, with their libraries."""
    return [
        (library, bug)
        for library in libraries().values()
        for bug in findings_of(library)
        if bug.cause == cause
    ]


def finding_names() -> set[str]:
    """Return the names that all findings have in the results."""
    return {
        f"{library.name} {bug.key}"
        for library in libraries().values()
        for bug in findings_of(library)
    }


def file_of(library: Library, bug: Bug) -> str:
    """Return the path of a bug's page in the folder of pages."""
    return f"{FOLDER}/{library.name}/{bug.key}.md"


def upstream_report(
    library: Library, bug: Bug, found: Mapping[str, Any] | None, beside: list[str]
) -> str:
    """Return the whole page of a bug, with the paragraphs about the files beside it."""
    parts = [f"# {bug.title}", f"{library.distribution} {_affected_releases(library, bug)}"]
    parts += [bug.says, _fact_list(library, bug), *beside]
    parts += ["## As the harness shows it", TERMS, *_evidence(library, bug, found)]
    return "\n\n".join(parts) + "\n"


def _affected_releases(library: Library, bug: Bug) -> str:
    if bug.fixed:
        return f"{f'{bug.since} and later' if bug.since else ''}, gone in {bug.fixed}".lstrip(", ")
    since = f"; seen since {bug.since}" if bug.since not in ("", library.pinned) else ""
    return f"{library.pinned}{since}"


def _facts(library: Library, bug: Bug) -> dict[str, str]:
    return {
        "where": bug.where,
        **({"looked for in cases with": ", ".join(bug.when)} if bug.when else {}),
        "severity": bug.severity,
        "reached by": f"{bug.reach}. {bug.documented}" if bug.documented else bug.reach,
        "newest release": _newest_release(library, bug),
        "main branch": bug.main,
        "addressee": bug.addressee,
        "precedents": "; ".join(bug.precedents) or "none was found",
    }


def _newest_release(library: Library, bug: Bug) -> str:
    known = about(library)
    newer = known.newer_than(library.pinned)
    python = f", which needs Python {known.python}" if known.python else ""
    if newer:
        return f"{newer}{python}. Read, not run: {bug.newest}"
    return f"{library.pinned}{python}, is the newest: {bug.newest}"


def _fact_list(library: Library, bug: Bug) -> str:
    facts = _facts(library, bug)
    facts["where"] = f"`{facts['where']}`"
    if bug.precedents:
        # One line each. MkDocs takes four spaces for a list inside a list.
        facts["precedents"] = "".join(f"\n    - {precedent}" for precedent in bug.precedents)
    if bug.cause:
        links = ", ".join(
            f"[{other.distribution}](../{other.name}/{its.key}.md)"
            for other, its in with_cause(bug.cause)
            if (other, its) != (library, bug)
        )
        facts["same cause"] = f"{bug.cause} It is also in {links}."
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items()).replace(": \n", ":\n")


def _evidence(library: Library, bug: Bug, found: Mapping[str, Any] | None) -> Iterator[str]:
    kept = f"kept in `golden/vectors/{bug.golden}.json`."
    if found is None:
        yield f"Not run here; its case is `{bug.line}`, {kept}"
        return
    yield f"```\n{found['explanation']}\n```"
    if found["loss"]:
        expected, got = found["loss"]
        yield f"Loss expected {expected:.9g}, got {got:.9g}."
    steps = ", ".join(f"`{library.name}.{key}`" for key in bug.candidate)
    mended = ""
    if bug.key in library.mends:
        name = f"{library.name}.{bug.candidate[0]}+{bug.key}"
        mended = f" With our mends of it and of what else is listed, the step is right: `{name}`."
    yield f"It shows in {steps}. Its batch is {kept}{mended}"


def finding_record(key: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a listed bug's page with pictures: its failure, and what is known."""
    library = libraries()[found["candidate"].partition(".")[0]]
    (bug,) = (bug for bug in bugs(library) if bug.key == key)
    known = {
        "says": bug.says,
        "in": ", ".join(f"{library.name}.{key}" for key in bug.candidate),
        **_facts(library, bug),
        "release": _affected_releases(library, bug),
        "how it could be mended": bug.mend,
        "golden": bug.golden,
        "as a script": f"{found['replay']} --script report.py",
    }
    return {**found, "known": known}


def first_sighting(library: Library, bug: Bug, results: Results) -> Mapping[str, Any] | None:
    """Return the record of the first entry or release in which a bug was seen, or None."""
    candidates, releases = results["candidates"], results["releases"]
    records: list[Mapping[str, Any]] = []
    for name in (f"{library.name}.{key}" for key in bug.candidate):
        records += [candidates[name]] if name in candidates else []
        records += releases.get(name, {}).values()
    for record in records:
        listed: Mapping[str, Any] | None = record["listed"].get(bug.key)
        if listed and listed["looks"] in bug.looks:
            return listed
    return None
