"""One run of the tier: it runs steps in order, and writes all results to disk after each one."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tier import child
from tier.archive import pack, replace
from tier.one_line import read_document
from tier.shares import fitting, share
from tier.steps import Step

SUMMARY = Path(__file__).resolve().parent.parent / "summary.py"
FAILURES = Path(".harness", "failures")
# Cases of a step of generated cases without a limit of seconds.
CASES = 300
# Time that is kept for writing the results after the last step: the smaller one of a part of the
# limit and of some seconds.
RESERVE = 0.05, 5.0
# The part of its share after which a step of generated cases starts no other case.
JUDGING = 0.8
# This variable makes torch prefer every other fused attention to that of cuDNN.
WITHOUT_CUDNN = "TORCH_CUDNN_SDPA_DEPRIORITIZED"


class Interrupted(BaseException):
    """This process got a signal to end, which is the argument."""


@dataclass(slots=True)
class Note:
    """The state of a step: a line of steps.tsv."""

    name: str
    # The exit status, or a word.
    status: str = "waiting"
    seconds: str = ""
    why: str = ""

    @property
    def failed(self) -> int:
        return int(self.status) if self.status.isdigit() else 0


@dataclass(kw_only=True)
class Visit:
    """Steps on one device, within one limit of seconds."""

    out: Path
    archive: Path
    python: str
    device: str
    # Seconds for one case.
    deadline: float
    # Cases of a step of generated cases; with 0, as many as there is time for.
    most_cases: int
    # Seconds for all steps.
    limit: float
    # The first folders of the module path.
    paths: tuple[str, ...]
    # The path of a library that replaces torch's NCCL in the steps that need it.
    nccl: str = ""
    notes: list[Note] = field(default_factory=list)
    # The document of the probe, and its seconds.
    probe: tuple[dict[str, Any], float] = field(default_factory=lambda: ({}, 0.0))

    def __post_init__(self) -> None:
        self.started, self.since = time.monotonic(), time.time()
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*self.paths, *inherited]),
            "PYTHONUNBUFFERED": "1",
            # Other plugins of the runner must not disturb the tests.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }

    def run(self, steps: Sequence[Step]) -> int:
        """Run the steps; return the exit status of the first that failed, or of a signal."""
        self.out.mkdir(parents=True)
        self.notes = [Note(step.name) for step in steps]
        status = 0
        try:
            self._run_all(steps)
        except Interrupted as end:
            status = 128 + end.args[0]
            for note in self.notes:
                if note.status in ("running", "waiting"):
                    note.why = "interrupted"
                    note.status = str(status) if note.status == "running" else "left out"
        self._write_results(last=True)
        return status or next((note.failed for note in self.notes if note.failed), 0)

    def _run_all(self, steps: Sequence[Step]) -> None:
        part, most = RESERVE
        reserve = min(part * self.limit, most)
        for step, note in zip(steps, self.notes, strict=True):
            note.why = self._find_lack(step)
            note.status = "left out" if note.why else "waiting"
        runnable = [(s, note) for s, note in zip(steps, self.notes, strict=True) if not note.why]
        for number, (step, note) in enumerate(runnable, 1):
            left = self.started + self.limit - reserve - time.monotonic()
            seconds = share(step, [later for later, _ in runnable[number:]], left)
            if seconds:
                self._run(step, note, seconds)
            else:
                note.status = "left out"
                note.why = f"{max(left, 0):.0f} s were left, and it needs {step.least}"

    def _find_lack(self, step: Step) -> str:
        """Return why a step cannot run here; an empty text if it can."""
        if self.device not in step.devices:
            return f"not on {self.device}, only on {' and '.join(step.devices)}"
        if step.nccl and not self.nccl:
            return "no other NCCL was brought along, see NCCL"
        if step.module:
            code = f"from importlib.util import find_spec; exit(not find_spec({step.module!r}))"
            command = [self.python, "-c", code]
            found = subprocess.run(command, env=self.environment, check=False).returncode == 0
            return "" if found else f"{step.module} is not installed"
        return ""

    def _run(self, step: Step, note: Note, seconds: float) -> None:
        fits = self.most_cases or CASES
        if self.limit < float("inf"):
            fits = fitting(seconds, *self.probe)
        cases = min(fits, self.most_cases or fits)
        note.status = "running"
        shortened = f"{seconds:.0f} of its {step.most} s" if seconds < step.most else ""
        note.why = ", ".join(filter(None, [f"{cases} cases" if step.sized else "", shortened]))
        print(f"== {step.name}{note.why and f': {note.why}'}", flush=True)
        self._write_results()
        started = time.monotonic()
        command = step.command(
            device=self.device, out=str(self.out), deadline=f"{self.deadline:g}",
            cases=str(cases), limit=f"{JUDGING * seconds:.0f}",
            require="--harness-require=cuda" if self.device == "cuda" else "",
        )  # fmt: skip
        environment = self.environment | ({"LD_PRELOAD": self.nccl} if step.nccl else {})
        output, errors = (self.out / f"{step.name}.{kind}" for kind in (step.ending, "txt"))
        status = child.run([self.python, *command], seconds, environment, output, errors)
        took = time.monotonic() - started
        note.status, note.seconds = str(status), f"{took:.0f}"
        if not step.sized and status != child.CUT_OFF:
            # The shortened time was enough.
            note.why = ""
        print(f"   exit {status} after {took:.0f} s", flush=True)
        # Later steps depend on the results of these two.
        if step.name == "probe":
            self.probe = read_document(output), took
        if step.name == "attention" and read_document(output).get("raised"):
            self.environment[WITHOUT_CUDNN] = "1"
            note.why = f"what torch takes by itself raised: later steps have {WITHOUT_CUDNN}=1"

    def _write_results(self, *, last: bool = False) -> None:
        """Write steps.tsv, summary.md and the archive; a later kill cannot take them away."""
        lines = (f"{n.name}\t{n.status}\t{n.seconds}\t{n.why}\n" for n in self.notes)
        replace(self.out / "steps.tsv", "".join(lines).encode())
        # Only the last summary is printed, and shown on the page of a GitHub job.
        quiet = {} if last else {"GITHUB_STEP_SUMMARY": "", "GITHUB_ACTIONS": ""}
        stdout = None if last else subprocess.DEVNULL
        command = [sys.executable, str(SUMMARY), str(self.out)]
        subprocess.run(command, env={**os.environ, **quiet}, stdout=stdout, check=False)
        self.archive.parent.mkdir(parents=True, exist_ok=True)
        replace(self.archive, pack(self.out, FAILURES, self.since))
