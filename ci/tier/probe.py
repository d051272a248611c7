"""How soon ranks are up, and how many cases they judge in a second then: `check`, on warm ranks.

It takes the options of `check` and judges twice: the first time, what each case needs is loaded.
It prints the second document, with the seconds of what came before.
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
    silence = Console(quiet=True)
    with open_pool(options, ranks, request.candidates) as pool:
        moments = [time.monotonic()]
        pool.start()
        fault = pool.wait_until_ready()
        if fault:
            sys.exit(f"no ranks: {fault.summary}\n{fault.log}")
        moments.append(time.monotonic())
        # Kernels are loaded, and libraries begin, with the first of each dtype.
        first = [replace(request, count=1, dtypes=(dtype,)) for dtype in request.dtypes]
        for asked in (*first, request, request):
            summary = check(Examiner(request=asked, session=Session(pool)), silence)
            moments.append(time.monotonic())
            if summary.ended:
                break
        used = memory()
    # Also if it was cut off before the last.
    show(summary, Console(stderr=True))
    firsts = (f"first case in {dtype}" for dtype in request.dtypes)
    parts = ["ranks", *firsts, f"first {request.count} cases"]
    taken = [round(later - earlier, 2) for earlier, later in pairwise(moments)]
    document = summary.record()
    # Cut off, it knows of the first few.
    document["seconds of"] = dict(zip(parts, taken, strict=False))
    document["MB of each GPU process"] = used
    print_json(document)
    return status_of(summary.verdict)


def memory() -> dict[str, int]:
    """By process, what the driver says they hold; nothing where there is none."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
        return {pid: int(used) for pid, used in (line.split(", ") for line in told.splitlines())}
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}


if __name__ == "__main__":
    sys.exit(main())
