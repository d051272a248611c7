"""What `ci/gpu` was asked for, and with what."""

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

from tier.steps import ANY, PLANS, STEPS, VISIT, chosen
from tier.visit import Interrupted, Visit

ROOT = Path(__file__).resolve().parent.parent
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NAMES = {*PLANS, *(step.name for step in STEPS)}


def main() -> int:
    options = read()
    if options.list:
        print(listed())
        return 0
    out, names = place(options.words)
    if out.exists():
        refuse(f"{out} is there already; name a new folder")
    device = os.environ.get("DEVICE", "cuda")
    if device not in ANY:
        refuse(f"DEVICE={device}: use one of {', '.join(ANY)}")
    limit = options.limit or (VISIT if PLANS.keys() & set(names) else float("inf"))
    for number in ENDS:
        signal.signal(number, interrupt)
    with tempfile.TemporaryDirectory() as brought:
        visit = Visit(
            out=out,
            archive=options.archive or out / "gpu-results.tar.gz",
            python=os.environ.get("PYTHON", sys.executable),
            device=device,
            deadline=options.deadline,
            most_cases=int(os.environ.get("CASES", "0")),
            limit=limit,
            paths=(brought, str(ROOT)),
            nccl=unpacked(Path(packed), brought) if (packed := os.environ.get("NCCL")) else "",
        )
        if os.environ.get("WHEELS"):
            bring(Path(os.environ["WHEELS"]), visit.python, brought)
        return visit.run(chosen(names, sized=limit < float("inf")))


def read() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/gpu", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="OUT|STEP|PLAN")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="for all steps together")
    parser.add_argument(
        "--deadline", type=float, default=30.0, metavar="SECONDS", help="per case, default: 30"
    )
    parser.add_argument("--archive", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="show the plans and the steps")
    options = parser.parse_intermixed_args()
    for word in options.words[1:]:
        if word not in NAMES:
            refuse(f"{word}: is no step and no plan; --list shows them")
    return options


def refuse(why: str) -> NoReturn:
    print(f"ci/gpu: {why}", file=sys.stderr)
    sys.exit(2)


def place(words: list[str]) -> tuple[Path, list[str]]:
    """Where to, and what: the folder may be left out."""
    if words and words[0] not in NAMES:
        return Path(words[0]).absolute(), words[1:]
    return ROOT / "gpu-results" / ("-".join(words) or "all"), words


def listed() -> str:
    steps = (f"{step.name:14} {step.most:4} s  {step.shows}" for step in STEPS)
    plans = (f"{name:14} {', '.join(of)}" for name, of in PLANS.items())
    return "\n".join(["Steps, the most valuable first:", *steps, "", "Plans:", *plans])


def bring(wheels: Path, python: str, to: str) -> None:
    """Unpack what the interpreter lacks."""
    command = [*(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")]
    done = subprocess.run([*command, "--target", to, *wheels.glob("*.whl")], check=False)
    if done.returncode:
        refuse(f"{wheels}: cannot be unpacked")


def unpacked(packed: Path, folder: str) -> str:
    """The library that `ci/nccl.py` packed."""
    library = Path(folder, "libnccl.so.2")
    try:
        with lzma.open(packed) as source, library.open("wb") as file:
            shutil.copyfileobj(source, file)
    except (OSError, EOFError, lzma.LZMAError) as error:
        refuse(f"NCCL={packed}: cannot be unpacked: {error}")
    return str(library)


def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    for each in ENDS:
        # Once is enough: what is under way is being ended.
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Interrupted as end:
        sys.exit(128 + end.args[0])
