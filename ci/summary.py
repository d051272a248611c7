#!/usr/bin/env python3
"""Say as a Markdown table what the steps of a run said; run it as `ci/summary.py FOLDER`.

The folder is that of `ci/gpu`, or holds what --json and --junitxml wrote. The table goes to the
terminal and into its summary.md; on GitHub also to the job's page, and failures to their lines.
"""

import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import project  # noqa: F401 - what follows is found with it
from tier.archive import replace
from tier.told import counts, document, in_short

from harness.campaign.markdown import table

# GitHub shows no more of them for a job.
ANNOTATIONS = 10
# What is shown of a step that said nothing better.
LINES = 20
CUT_OFF = "124"
NOT_RUN = ("left out", "waiting", "running")


@dataclass(frozen=True)
class Step:
    """One part of a run, and the files that it left."""

    folder: Path
    name: str
    # How it ended, or a word where it was not run; nothing where it was not noted.
    status: str = ""
    seconds: str = ""
    # Why it was left out, or what was left out of it.
    why: str = ""

    @property
    def failed(self) -> bool:
        return self.status not in ("", "0", *NOT_RUN)

    def file(self, kind: str) -> str:
        """What is in the file of this kind; nothing where there is none."""
        file = self.folder / f"{self.name}.{kind}"
        return file.read_text(errors="replace") if file.exists() else ""

    def document(self) -> dict[str, Any]:
        return document(self.folder / f"{self.name}.json")

    def tests(self) -> list[ET.Element]:
        """Every test that it ran."""
        try:
            return list(ET.fromstring(self.file("xml")).iter("testcase"))  # noqa: S314 - pytest's
        except ET.ParseError:
            return []


class Failure(NamedTuple):
    """What went wrong, and in which line if that is known."""

    title: str
    text: str
    file: str = ""
    line: str = ""

    def annotation(self) -> str:
        """As GitHub reads it."""
        named = (f"{k}={escaped(getattr(self, k), ':,')}" for k in ("file", "line", "title"))
        known = ",".join(each for each in named if not each.endswith("="))
        return f"::error {known}::{escaped(self.text)}"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    found = steps(folder)
    failures = [failure for step in found for failure in failures_of(step)]
    page = markdown(found, failures)
    print(page)
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "summary.md", page.encode())
    if job := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(job).open("a") as file:
            file.write(page)
    if os.environ.get("GITHUB_ACTIONS"):
        for failure in failures[:ANNOTATIONS]:
            print(failure.annotation())
    return 0 if found else 1


def steps(folder: Path) -> list[Step]:
    """Those that were noted, in their order; then whatever else left a document."""
    noted = folder / "steps.tsv"
    lines = noted.read_text().splitlines() if noted.exists() else []
    found = [Step(folder, *line.split("\t")) for line in lines]
    others = {file.stem for kind in ("json", "xml") for file in folder.glob(f"*.{kind}")}
    return found + [Step(folder, name) for name in sorted(others - {step.name for step in found})]


def markdown(found: list[Step], failures: list[Failure]) -> str:
    """The table, and below it every failure in full."""
    rows = (
        (step.name, f"**{step.status}**" if step.failed else step.status, step.seconds, said(step))
        for step in found
    )
    told = (
        table(("step", "exit", "seconds", "what it said"), rows) if found else "Nothing was run.\n"
    )
    return told + "".join(f"\n**{each.title}**\n\n~~~\n{each.text}\n~~~\n" for each in failures)


def said(step: Step) -> str:
    """One line for a step: its documents in short, or else the last line that it printed."""
    if step.status in NOT_RUN:
        return step.why
    lines = [line.strip() for line in step.file("txt").splitlines() if line.strip()]
    told = tested(step) or in_short(step.document()) or (lines[-1] if lines else "nothing")
    cut = "cut off" if step.status == CUT_OFF else ""
    return "; ".join(filter(None, [cut, told, step.why]))


def tested(step: Step) -> str:
    tests = step.tests()
    judged = re.findall(r"^\d+ cases judged .*", step.file("txt"), re.MULTILINE)
    ended = counts(Counter(map(outcome, tests)))
    return "; ".join([f"{len(tests)} tests: {ended}", *judged]) if tests else ""


def outcome(test: ET.Element) -> str:
    ends = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    return next((ends[kind] for kind in ends if test.find(kind) is not None), "passed")


def failures_of(step: Step) -> list[Failure]:
    """Every case and test that failed; where none is known, how the step ended."""
    found = [
        Failure(f"{step.name}: {failure['verdict']}", failure["explanation"])
        for tally in step.document().get("candidates", {}).values()
        for failure in tally["failures"]
    ]
    for test in step.tests():
        # pytest counts lines from zero.
        line = str(int(test.get("line", "")) + 1) if test.get("line") else ""
        for child in (*test.iter("failure"), *test.iter("error")):
            first, whole = child.get("message", ""), child.text or ""
            # The message of a test of a step is the first line of what is to be told.
            text = whole if whole.startswith(first) else first
            found.append(Failure(test.get("name", ""), text, test.get("file", ""), line))
    last = "\n".join(step.file("txt").splitlines()[-LINES:])
    ended = [Failure(f"{step.name}: exit {step.status}", last)] if step.failed else []
    return found or ended


def escaped(text: str, also: str = "") -> str:
    return "".join(f"%{ord(sign):02X}" if sign in f"%\r\n{also}" else sign for sign in text)


if __name__ == "__main__":
    sys.exit(main())
