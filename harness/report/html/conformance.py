"""What published libraries do, as pages: a table of all, and a page for each release."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from harness.report.html.failure import failure_page, told_in_pairs
from harness.report.html.heat import Square, heat
from harness.report.html.render import render
from harness.verdict import PASSED


def conformance_pages(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The table of all, and then each library and release."""
    candidates, releases = document["candidates"], document["releases"]
    findings = {
        name: (finding_file(name), record) for name, record in document.get("findings", {}).items()
    }
    libraries: dict[str, dict[str, Any]] = {}
    for name, each in candidates.items():
        libraries.setdefault(each["release"], {})[name] = each
    found = {release: situations_of_all(steps) for release, steps in libraries.items()}
    met = dict.fromkeys(name for of_one in found.values() for name in of_one)
    yield (
        "conformance.html",
        render(
            "conformance.html",
            title=f"{len(candidates)} steps of {len(libraries)} libraries",
            verdict="",
            libraries=[(each, file_of(each), summary(steps)) for each, steps in libraries.items()],
            heat=heat(found, met),
        ),
    )
    for release, steps in libraries.items():
        yield file_of(release), library_page(release, steps, releases, findings)
    for name, (file, record) in findings.items():
        yield file, failure_page(record, {"listed": name, **record["known"]})


def library_page(
    release: str,
    steps: Mapping[str, Any],
    releases: Mapping[str, Any],
    findings: Mapping[str, tuple[str, Any]],
) -> str:
    """One library: its steps, what it refuses, and its listed bugs."""

    def _page(step: str, key: str) -> str:
        return findings.get(f"{step.partition('.')[0]} {key}", ("", None))[0]

    refused: Counter[str] = Counter()
    for each in steps.values():
        for stage in each["stages"].values():
            refused.update(stage["refused"])
    listed = {
        f"{name} {key}": (key, found, told_in_pairs(found["explanation"]), _page(name, key))
        for name, each in steps.items()
        for key, found in each["listed"].items()
    }
    return render(
        "library.html",
        title=release,
        verdict="",
        release=release,
        packages=next(iter(steps.values()))["packages"],
        steps=[(name, summary({name: each}), each) for name, each in steps.items()],
        refused=refused.most_common(),
        listed=listed,
        releases={name: _timeline(releases[name]) for name in steps if name in releases},
    )


def summary(steps: Mapping[str, Any]) -> dict[str, Any]:
    """How the cases of some steps came out."""
    verdicts: Counter[str] = Counter()
    for each in steps.values():
        for stage in each["stages"].values():
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
        "bugs": len({key for each in steps.values() for key in each["listed"]}),
    }


def situations_of_all(steps: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """By situation, the verdicts of all stages of some steps."""
    found: dict[str, Counter[str]] = {}
    for each in steps.values():
        for stage in each["stages"].values():
            for situation, counts in stage["situations"].items():
                found.setdefault(situation, Counter()).update(counts)
    return found


def _timeline(versions: Mapping[str, Any]) -> dict[str, Any]:
    """By release, from left to right: how many generated cases pass, and which bugs it has."""
    keys = dict.fromkeys(key for each in versions.values() for key in each["listed"])
    return {
        "versions": list(versions),
        "passed": [_passed(each["generated"]["verdicts"]) for each in versions.values()],
        "bugs": {
            key: [
                _seen(each["listed"].get(key, {}).get("looks", "")) for each in versions.values()
            ]
            for key in keys
        },
    }


def _seen(looks: str) -> Square:
    """What one release does on the golden of a listed bug."""
    if looks in PASSED:
        return Square("not there", f"{looks}: it passes", "passed")
    if looks in ("", "UNSUPPORTED"):
        return Square("refused" if looks else "not tried", looks, "none")
    return Square("there", looks, "failed")


def _passed(verdicts: Mapping[str, int]) -> str:
    judged = sum(verdicts.values()) - verdicts.get("UNSUPPORTED", 0)
    return f"{sum(verdicts.get(verdict, 0) for verdict in PASSED)} of {judged}"


def finding_file(name: str) -> str:
    """The page of a listed bug."""
    return f"finding-{''.join(c if c.isascii() and c.isalnum() else '-' for c in name)}.html"


def file_of(release: str) -> str:
    """The page of a release."""
    return f"library-{''.join(c if c.isascii() and c.isalnum() else '-' for c in release)}.html"
