"""The conformance table as Markdown, from what was found and kept."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from harness.campaign.markdown import table
from harness.candidates.published.bugs import about
from harness.candidates.published.library import libraries
from harness.conformance.document import Results
from harness.verdict import PASSED

WRONG = ("loss", "losses of tokens", "gradients", "every token once", "no fault")

HEAD = """# Conformance of published packages

This page shows how released packages do on the cases of this harness. Each package is wired as its
own documentation describes, in a folder of `harness/candidates/published/`. Its ranks run in their
own environment. Weights come from the case, so one oracle judges all packages. At sp 1 each
package must be plain training; otherwise we test nothing else of it. Nothing here ran on a GPU:
plain torch stands in for flash-attn.

`python -m harness conformance` wrote this page, from `conformance.json` beside it.

"""


def page(results: Results) -> str:
    """The whole page."""
    candidates, releases = results["candidates"], results["releases"]
    sections = (summary, _situations, _kinds, _failures, _refused)
    parts = [HEAD, *(section(candidates) for section in sections)]
    parts += [_releases(releases), _packages(candidates)]
    return "\n".join(part for part in parts if part)


def summary(candidates: Mapping[str, Any]) -> str:
    """One line for each candidate."""
    verdicts = ("cases", "passed", "known", "diverged", "fault", "unsupported")
    heads = (
        "candidate",
        "release",
        *verdicts,
        "largest error / budget",
        "stood in for",
        "known bugs seen",
    )
    rows = []
    for name, each in candidates.items():
        counts = _all(each, "verdicts")
        passed = sum(counts[verdict] for verdict in PASSED)
        judged = counts.total() - counts["UNSUPPORTED"]
        seen = [key for key in each["listed"] if key not in each["stale"]]
        note = f"{each['wiring']}; nothing else was asked" if each["wiring"] else ", ".join(seen)
        stages = each["stages"].values()
        stood_in = sorted({name for stage in stages for name in stage["stood_in"]})
        rows.append(
            (
                f"`{name}`",
                each["version"],
                str(judged),
                str(passed),
                *(str(counts[verdict]) for verdict in ("KNOWN", "DIVERGED", "FAULT")),
                f"{counts['UNSUPPORTED']} of {counts.total()}",
                f"{max((stage['used'] for stage in stages), default=0):.2g}",
                ", ".join(stood_in) or "nothing",
                note,
            )
        )
    return table(heads, rows)


def by_library(results: Results) -> list[tuple[str, ...]]:
    """One line for each library, the most used first, for who wants no more: heads first."""
    of_library: dict[str, list[dict[str, Any]]] = {}
    for each in results["candidates"].values():
        of_library.setdefault(each["release"], []).append(each)
    verdicts = ("cases", "passed", "known", "diverged", "fault", "unsupported")
    heads = ("library", "release", "steps", *verdicts, "bugs", "what to do today")
    of = {release: about(libraries()[release.partition("@")[0]]) for release in of_library}
    lines: list[tuple[str, ...]] = [heads]
    for release in sorted(of_library, key=lambda release: -of[release].stars):
        examined = of_library[release]
        counts = sum((_all(each, "verdicts") for each in examined), Counter[str]())
        bugs = {key for each in examined for key in each["listed"] if key not in each["stale"]}
        refused = counts["UNSUPPORTED"]
        numbers = (
            len(examined),
            counts.total() - refused,
            sum(counts[verdict] for verdict in PASSED),
            *(counts[verdict] for verdict in ("KNOWN", "DIVERGED", "FAULT")),
        )
        name, version = _library(examined[0]), examined[0]["version"]
        share = f"{100 * refused / max(counts.total(), 1):.0f} %"
        today = of[release].today
        lines.append((name, version, *map(str, numbers), share, str(len(bugs)), today))
    return lines


def _situations(candidates: Mapping[str, Any]) -> str:
    """By situation and library: how many cases did not pass, of those that were judged."""
    judged: dict[str, Counter[str]] = {}
    failed: dict[str, Counter[str]] = {}
    for each in candidates.values():
        library = _library(each)
        for stage in each["stages"].values():
            for situation, counts in stage["situations"].items():
                bad = sum(count for verdict, count in counts.items() if verdict not in PASSED)
                judged.setdefault(situation, Counter())[library] += sum(counts.values())
                failed.setdefault(situation, Counter())[library] += bad
    if not judged:
        return ""
    libraries = list(dict.fromkeys(map(_library, candidates.values())))
    rows = [
        (
            situation,
            str(counts.total()),
            *(
                f"{failed[situation][name]} of {counts[name]}" if counts[name] else "none"
                for name in libraries
            ),
        )
        for situation, counts in judged.items()
    ]
    text = (
        "## By situation\n\nHow many of the judged cases did not pass; `KNOWN` counts as not "
        "passed. A case can be in\nseveral situations.\n\n"
    )
    return text + table(("situation", "judged", *libraries), rows)


def _kinds(candidates: Mapping[str, Any]) -> str:
    """By property: in how many of the cases that did not pass each was broken."""
    rows = []
    for name, each in candidates.items():
        wrong, stages = _all(each, "wrong"), each["stages"].values()
        failed = sum(
            stage["verdicts"].get(verdict, 0)
            for stage in stages
            for verdict in ("KNOWN", "DIVERGED", "FAULT")
        )
        if failed:
            unseen = sum(stage["unseen_by_loss"] for stage in stages)
            rows.append(
                (f"`{name}`", str(failed), *(str(wrong[kind]) for kind in WRONG), str(unseen))
            )
    if not rows:
        return ""
    text = (
        "## By property\n\nHow many of the cases that did not pass, `KNOWN` included, broke each "
        "property. The last column\ncounts those that a comparison of losses would have passed, "
        "because the loss was right within 1 %.\n\n"
    )
    return text + table(("candidate", "failed", *WRONG, "loss alone sees nothing"), rows)


def _failures(candidates: Mapping[str, Any]) -> str:
    """What is not listed as known, in full."""
    parts: list[str] = []
    for name, each in candidates.items():
        parts += [
            f"### `{name}`: {failure['looks']}, {failure['count']} cases\n\n"
            f"```\n{failure['explanation']}\n```\n"
            for failure in each["failures"]
        ]
        parts += [
            f"`{name}`: `{key}` is listed as known and was not seen.\n" for key in each["stale"]
        ]
    if not parts:
        return ""
    return (
        "## Divergences that are not listed\n\nEach is shown on its smallest case.\n\n"
        + "\n".join(parts)
    )


def _refused(candidates: Mapping[str, Any]) -> str:
    rows = []
    for name, each in candidates.items():
        reasons = Counter[str]()
        for reason, count in _all(each, "refused").items():
            # Which fields; their numbers are many.
            reasons[re.sub(r"=\d\S*", "", reason)] += count
        for reason, count in reasons.most_common(6):
            rows.append((f"`{name}`", reason, str(count)))
    if not rows:
        return ""
    return (
        "## What is unsupported\n\n"
        "These cases were refused beforehand, or left out because a listed fault had shown often "
        "enough.\nThey never count as passed.\n\n" + table(("candidate", "reason", "cases"), rows)
    )


def _releases(releases: Mapping[str, Any]) -> str:
    """When a bug came, and when it went."""
    parts = []
    for name, versions in releases.items():
        keys = list(dict.fromkeys(key for each in versions.values() for key in each["listed"]))
        rows = []
        for version, each in versions.items():
            counts = Counter(each["generated"]["verdicts"])
            judged = counts.total() - counts["UNSUPPORTED"]
            passed = sum(counts[verdict] for verdict in PASSED)
            rows.append(
                (
                    version,
                    f"{passed}/{judged}",
                    *(each["listed"].get(key, {}).get("looks", "") for key in keys),
                )
            )
        parts.append(f"### `{name}`\n\n" + table(("release", "passed", *keys), rows))
    if not parts:
        return ""
    text = (
        "## Releases\n\nThe outcome of the smallest case of each listed bug in each release, and "
        "how many generated\ncases pass. It shows when a bug came and when it went.\n\n"
    )
    return text + "\n".join(parts)


def _packages(candidates: Mapping[str, Any]) -> str:
    lines = []
    for release, packages in {e["release"]: e["packages"] for e in candidates.values()}.items():
        pins = ", ".join(f"{name} {version}" for name, version in packages.items())
        lines.append(f"- {release}: {pins}\n")
    return "## Installed\n\n" + "".join(lines) if lines else ""


def _library(each: Mapping[str, Any]) -> str:
    name: str = each["release"].partition("@")[0]
    return name


def _all(each: Mapping[str, Any], what: str) -> Counter[str]:
    total = Counter[str]()
    for stage in each["stages"].values():
        total.update(stage[what])
    return total
