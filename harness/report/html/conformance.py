"""The pages of conformance: a table of all libraries, and a page of each release and finding."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from harness.report.html.failure import explanation_pairs, failure_page
from harness.report.html.heat import Square, heat
from harness.report.html.render import render
from harness.verdict import PASSED


def conformance_pages(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each page, the table of all libraries first."""
    candidates, releases = document["candidates"], document["releases"]
    findings = {
        name: (finding_file(name), record) for name, record in document.get("findings", {}).items()
    }
    libraries: dict[str, dict[str, Any]] = {}
    for name, step in candidates.items():
        libraries.setdefault(step["release"], {})[name] = step
    verdicts = {release: situation_verdicts(steps) for release, steps in libraries.items()}
    situations = dict.fromkeys(name for counts in verdicts.values() for name in counts)
    yield (
        "conformance.html",
        render(
            "conformance.html",
            title=f"{len(candidates)} steps of {len(libraries)} libraries",
            verdict="",
            libraries=[
                (release, library_file(release), summary(steps))
                for release, steps in libraries.items()
            ],
            heat=heat(verdicts, situations),
        ),
    )
    for release, steps in libraries.items():
        yield library_file(release), library_page(release, steps, releases, findings)
    for name, (file, record) in findings.items():
        yield file, failure_page(record, {"listed": name, **record["known"]})


def library_page(
    release: str,
    steps: Mapping[str, Any],
    releases: Mapping[str, Any],
    findings: Mapping[str, tuple[str, Any]],
) -> str:
    """Return the page of one release: its steps, its listed bugs, and what it refuses."""

    def page_of(step: str, key: str) -> str:
        return findings.get(f"{step.partition('.')[0]} {key}", ("", None))[0]

    refused: Counter[str] = Counter()
    for step in steps.values():
        for stage in step["stages"].values():
            refused.update(stage["refused"])
    listed = {
        f"{name} {key}": (key, bug, explanation_pairs(bug["explanation"]), page_of(name, key))
        for name, step in steps.items()
        for key, bug in step["listed"].items()
    }
    return render(
        "library.html",
        title=release,
        verdict="",
        release=release,
        packages=next(iter(steps.values()))["packages"],
        steps=[(name, summary({name: step}), step) for name, step in steps.items()],
        refused=refused.most_common(),
        listed=listed,
        releases={name: _timeline(releases[name]) for name in steps if name in releases},
    )


def summary(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many cases of these steps came to each verdict, and how many bugs are listed."""
    verdicts: Counter[str] = Counter()
    for step in steps.values():
        for stage in step["stages"].values():
            verdicts.update(stage["verdicts"])
    refused = verdicts["UNSUPPORTED"]
    return {
        "steps": len(steps),
        "judged": verdicts.total() - refused,
        "passed": sum(verdicts[name] for name in PASSED),
        "known": verdicts["KNOWN"],
        "diverged": verdicts["DIVERGED"],
        "fault": verdicts["FAULT"],
        "refused": refused,
        "bugs": len({key for step in steps.values() for key in step["listed"]}),
    }


def situation_verdicts(steps: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return by situation how many cases of these steps came to each verdict."""
    verdicts: dict[str, Counter[str]] = {}
    for step in steps.values():
        for stage in step["stages"].values():
            for situation, counts in stage["situations"].items():
                verdicts.setdefault(situation, Counter()).update(counts)
    return verdicts


def _timeline(versions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the view of a step's releases: how many generated cases pass, and which bugs show."""
    keys = dict.fromkeys(key for release in versions.values() for key in release["listed"])
    return {
        "versions": list(versions),
        "passed": [_passed(release["generated"]["verdicts"]) for release in versions.values()],
        "bugs": {
            key: [
                _bug_square(release["listed"].get(key, {}).get("looks", ""))
                for release in versions.values()
            ]
            for key in keys
        },
    }


def _bug_square(looks: str) -> Square:
    """Return whether a release shows a listed bug, by how the bug's golden comes out there."""
    if looks in PASSED:
        return Square("not there", f"{looks}: it passes", "passed")
    if looks in ("", "UNSUPPORTED"):
        return Square("refused" if looks else "not tried", looks, "none")
    return Square("there", looks, "failed")


def _passed(verdicts: Mapping[str, int]) -> str:
    judged = sum(verdicts.values()) - verdicts.get("UNSUPPORTED", 0)
    return f"{sum(verdicts.get(verdict, 0) for verdict in PASSED)} of {judged}"


def finding_file(name: str) -> str:
    """Return the name of the page of a listed bug."""
    return f"finding-{''.join(c if c.isascii() and c.isalnum() else '-' for c in name)}.html"


def library_file(release: str) -> str:
    """Return the name of the page of a release."""
    return f"library-{''.join(c if c.isascii() and c.isalnum() else '-' for c in release)}.html"
