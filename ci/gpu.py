"""The GPU tier: goldens, generated cases, known bugs and tests on four ranks of the device.

  ci/gpu [OUT] [STEP|PLAN ...]   into a new folder OUT; all steps, or those named
  ci/gpu first                   what a first visit of ten minutes is for; then second, third ...

OUT keeps what each step said, what the device computed, and all of it in short as summary.md; the
archive keeps it in one file of at most 8 MB. Both are whole after every step, whatever ends this.

Variables:
  PYTHON=python3.12    another interpreter
  WHEELS=FOLDER        wheels of what it lacks, unpacked for this run only
  NCCL=FILE            a newer NCCL, as ci/nccl.py packs it, for the step that needs it
  DEVICE=cpu CASES=20  tries it without a GPU
"""

import argparse
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from project import ROOT
from tier.steps import ANY, PLANS, STEPS, VISIT, chosen
from tier.visit import Interrupted, Visit

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NAMES = {*PLANS, *(step.name for step in STEPS)}


def main() -> int:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ci/gpu", description=__doc__, formatter_class=shown)
    parser.add_argument("words", nargs="*", metavar="OUT|STEP|PLAN")
    limit = f"seconds for all steps together; a plan has {VISIT}"
    parser.add_argument("--limit", type=float, help=limit)
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds per case: 30")
    parser.add_argument("--archive", type=Path, help="instead of OUT/gpu-results.tar.gz")
    parser.add_argument("--list", action="store_true", help="show the plans and the steps")
    options = parser.parse_intermixed_args()
    if options.list:
        steps = (f"{step.name:14} {step.most:4} s  {step.shows}" for step in STEPS)
        plans = (f"{name:14} {', '.join(of)}" for name, of in PLANS.items())
        print("Steps, the most valuable first:", *steps, "", "Plans:", *plans, sep="\n")
        return 0
    out, names = split(options.words)
    device = os.environ.get("DEVICE", "cuda")
    for word in (word for word in names if word not in NAMES):
        refuse(f"{word}: is no step and no plan; --list shows them")
    if out.exists():
        refuse(f"{out} is there already; name a new folder")
    if device not in ANY:
        refuse(f"DEVICE={device}: use one of {', '.join(ANY)}")
    seconds = options.limit or (VISIT if PLANS.keys() & set(names) else float("inf"))
    for number in ENDING_SIGNALS:
        signal.signal(number, interrupt)
    with tempfile.TemporaryDirectory() as packages:
        visit = Visit(
            out=out,
            archive=options.archive or out / "gpu-results.tar.gz",
            python=os.environ.get("PYTHON", sys.executable),
            device=device,
            deadline=options.deadline,
            most_cases=whole_number("CASES"),
            limit=seconds,
            paths=(packages, str(ROOT)),
            nccl=unpack_nccl(packed, packages) if (packed := os.environ.get("NCCL")) else "",
        )
        if wheels := os.environ.get("WHEELS"):
            unpack_wheels(wheels, visit.python, packages)
        return visit.run(chosen(names, sized=seconds < float("inf")))


def whole_number(variable: str) -> int:
    """Return the number in a variable; 0 where it is not set or empty."""
    text = os.environ.get(variable) or "0"
    if not text.isdecimal():
        refuse(f"{variable}={text}: is no whole number")
    return int(text)


def refuse(why: str) -> NoReturn:
    print(f"ci/gpu: {why}", file=sys.stderr)
    sys.exit(2)


def split(words: list[str]) -> tuple[Path, list[str]]:
    """Split the arguments into the folder for results, which has a default, and the steps."""
    if words and words[0] not in NAMES:
        return Path(words[0]).absolute(), words[1:]
    return ROOT / "gpu-results" / ("-".join(words) or "all"), words


def unpack_wheels(wheels: str, python: str, folder: str) -> None:
    """Unpack the wheels of packages that the interpreter lacks, without changing it."""
    command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    files = Path(wheels).glob("*.whl")
    if subprocess.run([*command, "--target", folder, *files], check=False).returncode:
        refuse(f"{wheels}: cannot be unpacked")


def unpack_nccl(packed: str, folder: str) -> str:
    """Unpack the library that `ci/nccl.py` packed, and return its path."""
    library = Path(folder, "libnccl.so.2")
    try:
        with lzma.open(packed) as source, library.open("wb") as file:
            shutil.copyfileobj(source, file)
    except (OSError, EOFError, lzma.LZMAError) as error:
        refuse(f"NCCL={packed}: cannot be unpacked: {error}")
    return str(library)


def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    for ending in ENDING_SIGNALS:
        # A second signal must not interrupt the cleanup.
        signal.signal(ending, signal.SIG_IGN)
    raise Interrupted(number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Interrupted as end:
        sys.exit(128 + end.args[0])
