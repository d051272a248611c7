"""Judge many cases in fp64: all must pass with much budget to spare, and no memory may leak.

`ci/soak` runs it. It keeps the JSON document of `check` in .harness/soak.json. With `--shard K/N`
it judges one part, and keeps .harness/soak-K-N.json, which `harness merge` can add up.
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
# One case in so many may need the references twice.
ONE_OF = 1000
PROCESSES = "the controller", "the largest rank"
# Seconds between measurements of memory.
BETWEEN = 5.0
# MiB by which a process may grow from the first half of a run to the second. Imports and large
# cases take memory in the first half, which the allocator keeps.
GROWTH = 32


def main() -> None:
    options = sys.argv[1:]
    cases = int(options.pop(0)) if options and options[0].isdigit() else CASES
    part = options[options.index("--shard") + 1].split("/") if "--shard" in options else []
    document = ROOT / ".harness" / ("-".join(["soak", *part]) + ".json")
    document.parent.mkdir(exist_ok=True)
    check = [sys.executable, "-m", "harness", "check", "--dtype=fp64", "--json", *options]
    with document.open("w") as out:
        process = subprocess.Popen([*check, f"--cases={cases}"], stdout=out, cwd=ROOT)
        memory = list(measure_memory(process))
    if process.returncode:
        sys.exit(process.returncode)
    errors = []
    for name, candidate in json.loads(document.read_text())["candidates"].items():
        used, passed = candidate["used"], sum(map(candidate["verdicts"].get, PASSED, (0, 0)))
        near = candidate["histogram"]["fp64"]["counts"][-1]
        print(
            f"soak: {name} passed {passed} cases of {candidate['judged']} and used at most "
            f"{used:.3g} of what is allowed; {near} used more than half, and in "
            f"{candidate['asked_again']} plain training was asked again"
        )
        if passed < candidate["judged"]:
            errors.append(f"{name} passed {passed} cases of {candidate['judged']}")
        if candidate["asked_again"] > max(1, passed // ONE_OF):
            errors.append(
                f"{name} needed plain training twice in {candidate['asked_again']} cases"
            )
        if used >= LIMIT:
            errors.append(f"{name} used {used:.3g} of what is allowed; the limit is {LIMIT}")
    for process_name, sizes in zip(PROCESSES, zip(*memory, strict=True), strict=True):
        half = len(sizes) // 2
        first, second = max(sizes[: half + 1]), max(sizes[half:])
        print(
            f"soak: {process_name} had {sizes[0]} MiB at the start, at most {first} in the first "
            f"half and at most {second} in the second"
        )
        if second > first + GROWTH:
            errors.append(f"{process_name} grew by more than {GROWTH} MiB")
    # At the end, so that all errors are printed.
    if errors:
        sys.exit("soak: " + "; ".join(errors))


def measure_memory(check: subprocess.Popen[bytes]) -> Iterator[tuple[int, int]]:
    """Until `check` ends, yield the memory of the controller and of its largest rank, in MiB."""
    while check.poll() is None:
        time.sleep(BETWEEN)
        ranks = [rank for child in children(check.pid) for rank in children(child)]
        if ranks and check.poll() is None:
            yield resident(check.pid), max(map(resident, ranks))


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        # The process has ended.
        return []


def resident(pid: int) -> int:
    """Return the resident memory of a process in MiB; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) // 1024 if sizes else 0


if __name__ == "__main__":
    main()
