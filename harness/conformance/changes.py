"""Describe what has changed since an earlier document of results."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.conformance.document import Results
from harness.verdict import PASSED

HEAD = "# Since the last results\n\n"
NO_CHANGES = "Nothing is new, mended or newly refused.\n"
# Refusals vary with the cases that are drawn, but hardly by so large a share of them.
NEWLY_REFUSED = 0.2


def changes(before: Results, now: Results) -> str:
    """Return a page with a line for each candidate that changed, in whatever release."""
    old = {_without_release(name): record for name, record in before["candidates"].items()}
    new = {_without_release(name): record for name, record in now["candidates"].items()}
    lines: list[str] = []
    for name, record in new.items():
        if name in old:
            changed = list(_describe_changes(old[name], record))
        else:
            changed = [f"new: {_describe_outcome(record)}"]
        if changed:
            release = _describe_release(old.get(name), record)
            lines.append(f"- `{name}` {'; '.join([release, *changed])}\n")
    return HEAD + ("".join(lines) or NO_CHANGES)


def _describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["wiring"] != new["wiring"]:
        yield f"wiring: {new['wiring'] or 'runs again'}"
    old_failures, new_failures = _failure_names(old), _failure_names(new)
    for name in sorted(new_failures - old_failures):
        yield f"new: {name}, not listed"
    for name in sorted(old_failures - new_failures):
        yield f"gone: {name}, which was not listed"
    for key in sorted(_seen_bugs(new) - _seen_bugs(old)):
        yield f"new: {key}, which is listed"
    for key in sorted(_seen_bugs(old) - _seen_bugs(new)):
        yield f"mended: {key} is not seen any more"
    refused = _refused_shares(new)
    for reason in sorted(refused.keys() - _refused_shares(old).keys()):
        if refused[reason] >= NEWLY_REFUSED:
            yield f"newly refused: {reason}, {refused[reason]:.0%} of cases"


def _failure_names(record: Mapping[str, Any]) -> set[str]:
    return {failure["looks"] for failure in record["failures"]}


def _seen_bugs(record: Mapping[str, Any]) -> set[str]:
    """Return the keys of listed bugs whose case still fails."""
    gone = (*PASSED, "UNSUPPORTED")
    return {key for key, found in record["listed"].items() if found["looks"] not in gone}


def _refused_shares(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of cases that were refused for each field of a case."""
    asked = sum(sum(stage["verdicts"].values()) for stage in record["stages"].values())
    shares: dict[str, float] = {}
    for stage in record["stages"].values():
        for reason, count in stage["refused"].items():
            field = reason.partition("=")[0]
            shares[field] = shares.get(field, 0.0) + count / max(asked, 1)
    return shares


def _describe_release(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    version = new["version"]
    return f"{old['version']} -> {version}" if old and old["version"] != version else str(version)


def _describe_outcome(record: Mapping[str, Any]) -> str:
    bad = sorted(_failure_names(record) | _seen_bugs(record))
    return record["wiring"] or ", ".join(bad) or "it passes"


def _without_release(name: str) -> str:
    return name.partition("@")[0]
