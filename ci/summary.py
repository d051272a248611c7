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

import project  # noqa: F401 - it makes the imports below work
from tier.archive import replace
from tier.one_line import counts, read_document, summarize

from harness.campaign.markdown import table

# GitHub shows no more annotations of one job.
ANNOTATIONS = 10
# GitHub shows no page of a job that is longer than 1 MiB, so failures are left out behind this.
LONGEST_PAGE = 900_000
# Lines of output that are shown of a failed step without a document.
LINES = 20
CUT_OFF = "124"
NOT_RUN = ("left out", "waiting", "running")


@dataclass(frozen=True)
class Step:
    """One step of a run, and the files that it wrote."""

    folder: Path
    name: str
    # The exit status, or a word if the step was not run; empty if steps.tsv does not list it.
    status: str = ""
    seconds: str = ""
    # Why the step was left out, or shortened.
    why: str = ""

    @property
    def failed(self) -> bool:
        return self.status not in ("", "0", *NOT_RUN)

    def file(self, kind: str) -> str:
        """Return the text of the step's file with this suffix; empty if there is none."""
        file = self.folder / f"{self.name}.{kind}"
        return file.read_text(errors="replace") if file.exists() else ""

    def document(self) -> dict[str, Any]:
        return read_document(self.folder / f"{self.name}.json")

    def tests(self) -> list[ET.Element]:
        """Return the tests that the step ran."""
        try:
            xml = self.file("xml")
            return list(ET.fromstring(xml).iter("testcase"))  # noqa: S314 - pytest wrote it
        except ET.ParseError:
            return []


class Failure(NamedTuple):
    """A failed case, test or step; a test has the file and the line where it begins."""

    title: str
    text: str
    file: str = ""
    line: str = ""

    def annotation(self) -> str:
        """Return the workflow command that makes GitHub annotate a line."""
        named = (f"{k}={escaped(getattr(self, k), ':,')}" for k in ("file", "line", "title"))
        known = ",".join(each for each in named if not each.endswith("="))
        return f"::error {known}::{escaped(self.text)}"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    steps = read_steps(folder)
    failures = [failure for step in steps for failure in failures_of(step)]
    page = markdown(steps, failures)
    print(page)
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "summary.md", page.encode())
    if job := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(job).open("a") as file:
            file.write(page)
    if os.environ.get("GITHUB_ACTIONS"):
        for failure in failures[:ANNOTATIONS]:
            print(failure.annotation())
    return 0 if steps else 1


def read_steps(folder: Path) -> list[Step]:
    """Return the steps of steps.tsv in their order, then others that wrote a document."""
    listed = folder / "steps.tsv"
    lines = listed.read_text().splitlines() if listed.exists() else []
    steps = [Step(folder, *line.split("\t")) for line in lines]
    others = {file.stem for kind in ("json", "xml") for file in folder.glob(f"*.{kind}")}
    return steps + [Step(folder, name) for name in sorted(others - {step.name for step in steps})]


def markdown(steps: list[Step], failures: list[Failure]) -> str:
    """Return the table of steps, and below it every failure in full."""
    rows = (
        (
            step.name,
            f"**{step.status}**" if step.failed else step.status,
            step.seconds,
            describe(step),
        )
        for step in steps
    )
    heads = ("step", "exit", "seconds", "what it said")
    text = table(heads, rows) if steps else "Nothing was run.\n"
    for shown, each in enumerate(failures):
        longer = f"{text}\n**{each.title}**\n\n~~~\n{each.text}\n~~~\n"
        if len(longer.encode()) > LONGEST_PAGE:
            left_out = len(failures) - shown
            return (
                f"{text}\n{left_out} more failures have no room here; their documents have all.\n"
            )
        text = longer
    return text


def describe(step: Step) -> str:
    """Describe a step in one line: its tests, its document, or the last line that it printed."""
    if step.status in NOT_RUN:
        return step.why
    lines = [line.strip() for line in step.file("txt").splitlines() if line.strip()]
    result = describe_tests(step) or summarize(step.document())
    result = result or (lines[-1] if lines else "nothing")
    cut = "cut off" if step.status == CUT_OFF else ""
    return "; ".join(filter(None, [cut, result, step.why]))


def describe_tests(step: Step) -> str:
    tests = step.tests()
    judged = re.findall(r"^\d+ cases judged .*", step.file("txt"), re.MULTILINE)
    outcomes = counts(Counter(map(outcome, tests)))
    return "; ".join([f"{len(tests)} tests: {outcomes}", *judged]) if tests else ""


def outcome(test: ET.Element) -> str:
    outcomes = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    return next((outcomes[kind] for kind in outcomes if test.find(kind) is not None), "passed")


def failures_of(step: Step) -> list[Failure]:
    """Return every case and test that failed; if there is none, the failure of the step itself."""
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
            # The message of a failed proof is only the first line of its block.
            text = whole if whole.startswith(first) else first
            found.append(Failure(test.get("name", ""), text, test.get("file", ""), line))
    last = "\n".join(step.file("txt").splitlines()[-LINES:])
    of_step = [Failure(f"{step.name}: exit {step.status}", last)] if step.failed else []
    return found or of_step


def escaped(text: str, also: str = "") -> str:
    """Escape a value of a workflow command of GitHub."""
    return "".join(f"%{ord(sign):02X}" if sign in f"%\r\n{also}" else sign for sign in text)


if __name__ == "__main__":
    sys.exit(main())
