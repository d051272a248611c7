"""Judge many cases in fp64: each must pass, none may come near what is allowed, nothing may leak.

`ci/soak` runs it. What `check` prints as JSON stays in .harness/soak.json; with `--shard K/N`,
which judges a part, in .harness/soak-K-N.json, and `harness merge` adds the parts up.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from project import ROOT

from harness.verdict import PASSED

CASES = 10_000
# The largest share of a budget that rounding in fp64 may use.
LIMIT = 0.5
# Of so many cases, one may need plain training twice.
ONE_OF = 1000
PROCESSES = "the controller", "the largest rank"
# Seconds between looks at memory.
BETWEEN = 5.0
# MiB that a process may need more in the second half of a run than in the first, in which it
# imports, draws all cases and meets large ones: an allocator keeps what these took.
GROWTH = 32


def main() -> None:
    options = sys.argv[1:]
    cases = int(options.pop(0)) if options and options[0].isdigit() else CASES
    part = options[options.index("--shard") + 1].split("/") if "--shard" in options else []
    kept = ROOT / ".harness" / ("-".join(["soak", *part]) + ".json")
    kept.parent.mkdir(exist_ok=True)
    check = [sys.executable, "-m", "harness", "check", "--dtype=fp64", "--json", *options]
    with kept.open("w") as out:
        process = subprocess.Popen([*check, f"--cases={cases}"], stdout=out, cwd=ROOT)
        memory = list(watched(process))
    if process.returncode:
        sys.exit(process.returncode)
    wrong = []
    for name, candidate in json.loads(kept.read_text())["candidates"].items():
        used, passed = candidate["used"], sum(map(candidate["verdicts"].get, PASSED, (0, 0)))
        near = candidate["histogram"]["fp64"]["counts"][-1]
        print(
            f"soak: {name} passed {passed} cases of {candidate['judged']} and used at most "
            f"{used:.3g} of what is allowed; {near} used more than half, and in "
            f"{candidate['asked_again']} plain training was asked again"
        )
        if passed < candidate["judged"]:
            wrong.append(f"{name} passed {passed} cases of {candidate['judged']}")
        if candidate["asked_again"] > max(1, passed // ONE_OF):
            wrong.append(f"{name} needed plain training twice in {candidate['asked_again']} cases")
        if used >= LIMIT:
            wrong.append(f"{name} used {used:.3g} of what is allowed; the limit is {LIMIT}")
    for who, sizes in zip(PROCESSES, zip(*memory, strict=True), strict=True):
        half = len(sizes) // 2
        first, second = max(sizes[: half + 1]), max(sizes[half:])
        print(
            f"soak: {who} had {sizes[0]} MiB at the start, at most {first} in the first half and "
            f"at most {second} in the second"
        )
        if second > first + GROWTH:
            wrong.append(f"{who} grew by more than {GROWTH} MiB")
    # Only now: what went wrong first must not keep the rest from being told.
    if wrong:
        sys.exit("soak: " + "; ".join(wrong))


def watched(check: subprocess.Popen[bytes]) -> Iterator[tuple[int, int]]:
    """Wait for it; on the way, the memory of the controller and of its largest rank, in MiB."""
    while check.poll() is None:
        time.sleep(BETWEEN)
        ranks = [rank for each in children(check.pid) for rank in children(each)]
        if ranks and check.poll() is None:
            yield resident(check.pid), max(map(resident, ranks))


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        # Who has gone has none.
        return []


def resident(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) // 1024 if sizes else 0


if __name__ == "__main__":
    main()
