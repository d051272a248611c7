"""What is otherwise than in an earlier document of results: for who looks once a week."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.conformance.document import Results
from harness.verdict import PASSED

HEAD = "# Since the last results\n\n"
SAME = "Nothing is new, mended or newly refused.\n"
# Refusals vary with what is drawn; this much of a candidate's cases does not.
NEWLY_REFUSED = 0.2


def changes(before: Results, now: Results) -> str:
    """A short page: a line for each candidate, whichever release it names."""
    old = {_step(name): each for name, each in before["candidates"].items()}
    new = {_step(name): each for name, each in now["candidates"].items()}
    lines: list[str] = []
    for name, each in new.items():
        told = list(_changed(old[name], each)) if name in old else [f"new: {_how(each)}"]
        if told:
            release = _release(old.get(name), each)
            lines.append(f"- `{name}` {'; '.join([release, *told])}\n")
    return HEAD + ("".join(lines) or SAME)


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["wiring"] != new["wiring"]:
        yield f"wiring: {new['wiring'] or 'runs again'}"
    was, there = _failures(old), _failures(new)
    for name in sorted(there - was):
        yield f"new: {name}, not listed"
    for name in sorted(was - there):
        yield f"gone: {name}, which was not listed"
    for key in sorted(_seen(new) - _seen(old)):
        yield f"new: {key}, which is listed"
    for key in sorted(_seen(old) - _seen(new)):
        yield f"mended: {key} is not seen any more"
    refused = _refused(new)
    for reason in sorted(refused.keys() - _refused(old).keys()):
        if refused[reason] >= NEWLY_REFUSED:
            yield f"newly refused: {reason}, {refused[reason]:.0%} of cases"


def _failures(each: Mapping[str, Any]) -> set[str]:
    return {failure["looks"] for failure in each["failures"]}


def _seen(each: Mapping[str, Any]) -> set[str]:
    gone = (*PASSED, "UNSUPPORTED")
    return {key for key, found in each["listed"].items() if found["looks"] not in gone}


def _refused(each: Mapping[str, Any]) -> dict[str, float]:
    """The share of the cases that each reason, without what follows a number, took away."""
    asked = sum(sum(stage["verdicts"].values()) for stage in each["stages"].values())
    shares: dict[str, float] = {}
    for stage in each["stages"].values():
        for reason, count in stage["refused"].items():
            field = reason.partition("=")[0]
            shares[field] = shares.get(field, 0.0) + count / max(asked, 1)
    return shares


def _release(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    came = new["version"]
    return f"{old['version']} -> {came}" if old and old["version"] != came else str(came)


def _how(each: Mapping[str, Any]) -> str:
    bad = sorted(_failures(each) | _seen(each))
    return each["wiring"] or ", ".join(bad) or "it passes"


def _step(name: str) -> str:
    return name.partition("@")[0]
