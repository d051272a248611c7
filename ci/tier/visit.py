"""A run of the tier: steps one after the other, and after each of them everything on disk."""

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
from tier.shares import fitting, share
from tier.steps import Step
from tier.told import document

SUMMARY = Path(__file__).resolve().parent.parent / "summary.py"
FAILURES = Path(".harness", "failures")
# Cases for each step of them where nothing limits its seconds.
CASES = 300
# A part of the limit, and seconds, for what comes after the last step: the less of them is kept.
RESERVE = 0.05, 5.0
# The part of its share after which a step of generated cases begins no other case.
JUDGING = 0.8
# With it, torch prefers every other fused attention to cuDNN's.
WITHOUT_CUDNN = "TORCH_CUDNN_SDPA_DEPRIORITIZED"


class Interrupted(BaseException):
    """Somebody wants this to end; its argument is the signal."""


@dataclass(slots=True)
class Note:
    """What became of a step: a line of steps.tsv."""

    name: str
    # Its exit status, or a word.
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
    # Seconds for a case.
    deadline: float
    # For each step of generated cases; 0 is as many as there is time for.
    most_cases: int
    # Seconds for everything.
    limit: float
    # Where modules are looked for first.
    paths: tuple[str, ...]
    # A library that takes the place of torch's own NCCL in steps that need it, or nothing.
    nccl: str = ""
    notes: list[Note] = field(default_factory=list)
    # What the probe printed, and its seconds.
    probe: tuple[dict[str, Any], float] = field(default_factory=lambda: ({}, 0.0))

    def __post_init__(self) -> None:
        self.began, self.since = time.monotonic(), time.time()
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*self.paths, *inherited]),
            "PYTHONUNBUFFERED": "1",
            # A runner's other plugins are not ours.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }

    def run(self, steps: Sequence[Step]) -> int:
        """The exit status of the first that failed."""
        self.out.mkdir(parents=True)
        self.notes = [Note(step.name) for step in steps]
        status = 0
        try:
            self._each(steps)
        except Interrupted as end:
            status = 128 + end.args[0]
            for note in self.notes:
                if note.status in ("running", "waiting"):
                    note.why = "interrupted"
                    note.status = str(status) if note.status == "running" else "left out"
        self._keep(last=True)
        return status or next((note.failed for note in self.notes if note.failed), 0)

    def _each(self, steps: Sequence[Step]) -> None:
        part, most = RESERVE
        reserve = min(part * self.limit, most)
        for step, note in zip(steps, self.notes, strict=True):
            note.why = self._lack(step)
            note.status = "left out" if note.why else "waiting"
        able = [each for each in zip(steps, self.notes, strict=True) if not each[1].why]
        for number, (step, note) in enumerate(able, 1):
            left = self.began + self.limit - reserve - time.monotonic()
            seconds = share(step, [other for other, _ in able[number:]], left)
            if seconds:
                self._run(step, note, seconds)
            else:
                note.status = "left out"
                note.why = f"{max(left, 0):.0f} s were left, and it needs {step.least}"

    def _lack(self, step: Step) -> str:
        """Why a step says nothing here."""
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
        self._keep()
        began = time.monotonic()
        command = step.command(
            device=self.device, out=str(self.out), deadline=f"{self.deadline:g}",
            cases=str(cases), limit=f"{JUDGING * seconds:.0f}",
            require="--harness-require=cuda" if self.device == "cuda" else "",
        )  # fmt: skip
        known = self.environment | ({"LD_PRELOAD": self.nccl} if step.nccl else {})
        printed, text = (self.out / f"{step.name}.{kind}" for kind in (step.ending, "txt"))
        status = child.run([self.python, *command], seconds, known, printed, text)
        took = time.monotonic() - began
        note.status, note.seconds = str(status), f"{took:.0f}"
        if not step.sized and status != child.CUT_OFF:
            # It had time enough.
            note.why = ""
        print(f"   exit {status} after {took:.0f} s", flush=True)
        # What later steps have from this one.
        if step.name == "probe":
            self.probe = document(printed), took
        if step.name == "attention" and document(printed).get("raised"):
            self.environment[WITHOUT_CUDNN] = "1"
            note.why = f"what torch takes by itself raised: later steps have {WITHOUT_CUDNN}=1"

    def _keep(self, *, last: bool = False) -> None:
        """All that is known, where nothing can take it away."""
        lines = (f"{n.name}\t{n.status}\t{n.seconds}\t{n.why}\n" for n in self.notes)
        replace(self.out / "steps.tsv", "".join(lines).encode())
        # Only the last page is for the page of a job.
        quiet = {} if last else {"GITHUB_STEP_SUMMARY": "", "GITHUB_ACTIONS": ""}
        shown = None if last else subprocess.DEVNULL
        command = [sys.executable, str(SUMMARY), str(self.out)]
        subprocess.run(command, env={**os.environ, **quiet}, stdout=shown, check=False)
        self.archive.parent.mkdir(parents=True, exist_ok=True)
        replace(self.archive, pack(self.out, FAILURES, self.since))
