"""Write the conformance page as Markdown, from the results."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from harness.campaign.markdown import table
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
    """Return the whole page."""
    candidates, releases = results["candidates"], results["releases"]
    sections = (summary, _situation_section, _property_section, _failure_section, _refusal_section)
    parts = [HEAD, *(section(candidates) for section in sections)]
    parts += [_release_section(releases), _package_section(candidates)]
    return "\n".join(part for part in parts if part)


def summary(candidates: Mapping[str, Any]) -> str:
    """Return a table with a line for each candidate."""
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
    for name, record in candidates.items():
        counts = total(record, "verdicts")
        passed = sum(counts[verdict] for verdict in PASSED)
        judged = counts.total() - counts["UNSUPPORTED"]
        wiring = record["wiring"]
        seen = [key for key in record["listed"] if key not in record["stale"]]
        note = f"{wiring}; nothing else was asked" if wiring else ", ".join(seen)
        stages = record["stages"].values()
        stood_in = sorted({name for stage in stages for name in stage["stood_in"]})
        rows.append(
            (
                f"`{name}`",
                record["version"],
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


def _situation_section(candidates: Mapping[str, Any]) -> str:
    """Return by situation and library how many of the judged cases did not pass."""
    judged: dict[str, Counter[str]] = {}
    failed: dict[str, Counter[str]] = {}
    for record in candidates.values():
        library = library_of(record)
        for stage in record["stages"].values():
            for situation, counts in stage["situations"].items():
                bad = sum(count for verdict, count in counts.items() if verdict not in PASSED)
                judged.setdefault(situation, Counter())[library] += sum(counts.values())
                failed.setdefault(situation, Counter())[library] += bad
    if not judged:
        return ""
    libraries = list(dict.fromkeys(map(library_of, candidates.values())))
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


def _property_section(candidates: Mapping[str, Any]) -> str:
    """Return by candidate how many of the cases that did not pass broke each property."""
    rows = []
    for name, record in candidates.items():
        wrong, stages = total(record, "wrong"), record["stages"].values()
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


def _failure_section(candidates: Mapping[str, Any]) -> str:
    """Return each failure that is not listed, in full, and each listed bug that did not show."""
    parts: list[str] = []
    for name, record in candidates.items():
        parts += [
            f"### `{name}`: {failure['looks']}, {failure['count']} cases\n\n"
            f"```\n{failure['explanation']}\n```\n"
            for failure in record["failures"]
        ]
        parts += [
            f"`{name}`: `{key}` is listed as known and was not seen.\n" for key in record["stale"]
        ]
    if not parts:
        return ""
    return (
        "## Divergences that are not listed\n\nEach is shown on its smallest case.\n\n"
        + "\n".join(parts)
    )


def _refusal_section(candidates: Mapping[str, Any]) -> str:
    """Return the most frequent reasons for which cases were refused, by candidate."""
    rows = []
    for name, record in candidates.items():
        reasons = Counter[str]()
        for reason, count in total(record, "refused").items():
            # Join reasons that differ only in the numbers of a field.
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


def _release_section(releases: Mapping[str, Any]) -> str:
    """Return for each release how the smallest case of each listed bug came out."""
    parts = []
    for name, versions in releases.items():
        records = versions.values()
        keys = list(dict.fromkeys(key for record in records for key in record["listed"]))
        rows = []
        for version, record in versions.items():
            counts = Counter(record["generated"]["verdicts"])
            judged = counts.total() - counts["UNSUPPORTED"]
            passed = sum(counts[verdict] for verdict in PASSED)
            rows.append(
                (
                    version,
                    f"{passed}/{judged}",
                    *(record["listed"].get(key, {}).get("looks", "") for key in keys),
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


def _package_section(candidates: Mapping[str, Any]) -> str:
    """Return the packages that were installed for each release."""
    lines = []
    by_release = {record["release"]: record["packages"] for record in candidates.values()}
    for release, packages in by_release.items():
        pins = ", ".join(f"{name} {version}" for name, version in packages.items())
        lines.append(f"- {release}: {pins}\n")
    return "## Installed\n\n" + "".join(lines) if lines else ""


def library_of(record: Mapping[str, Any]) -> str:
    """Return the library of a candidate's record."""
    name: str = record["release"].partition("@")[0]
    return name


def total(record: Mapping[str, Any], field: str) -> Counter[str]:
    """Add up a field of counts over all stages of a candidate."""
    total = Counter[str]()
    for stage in record["stages"].values():
        total.update(stage[field])
    return total
