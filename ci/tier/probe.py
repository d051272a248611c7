"""Measure how long ranks take to start, and how many cases per second warm ranks judge.

It takes the options of `check` and judges the cases twice; the first time, kernels and libraries
are loaded. It prints the document of the second time, with the seconds of everything before it.
"""

import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

from rich.console import Console

from harness.campaign.check import check
from harness.campaign.examine import Examiner
from harness.campaign.table import show
from harness.cli import read
from harness.commands.campaign_request import read_request
from harness.commands.options import print_json, status_of
from harness.commands.ranks import open_pool
from harness.judge import Session


def main() -> int:
    _, given = read(["check", *sys.argv[1:]])
    options = given.arguments["options"]
    request, ranks = read_request(options, options.candidate, options)
    quiet = Console(quiet=True)
    with open_pool(options, ranks, request.candidates) as pool:
        moments = [time.monotonic()]
        pool.start()
        fault = pool.wait_until_ready()
        if fault:
            sys.exit(f"no ranks: {fault.summary}\n{fault.log}")
        moments.append(time.monotonic())
        # The first case of each dtype loads its kernels.
        first = [replace(request, count=1, dtypes=(dtype,)) for dtype in request.dtypes]
        for part in (*first, request, request):
            summary = check(Examiner(request=part, session=Session(pool)), quiet)
            moments.append(time.monotonic())
            if summary.ended:
                break
        used = gpu_memory()
    # After an interrupt this is the summary of an earlier part.
    show(summary, Console(stderr=True))
    firsts = (f"first case in {dtype}" for dtype in request.dtypes)
    names = ["ranks", *firsts, f"first {request.count} cases"]
    seconds = [round(later - earlier, 2) for earlier, later in pairwise(moments)]
    document = summary.record()
    # Not strict: after an interrupt some parts have no seconds.
    document["seconds of"] = dict(zip(names, seconds, strict=False))
    document["MB of each GPU process"] = used
    print_json(document)
    return status_of(summary.verdict)


def gpu_memory() -> dict[str, int]:
    """Return the GPU memory of each process in MB, as the driver reports it; empty without one."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        lines = (line.split(", ") for line in done.stdout.splitlines())
        return {pid: int(used) for pid, used in lines}
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}


if __name__ == "__main__":
    sys.exit(main())
