"""A controller for tests that kill it.

Run as `python -m properties.helpers.controller STAGE CANDIDATE`. It prints the process id of the
supervisor of its ranks, and then runs the candidate.
"""

import signal
import sys

from harness.candidates import locate
from harness.case import parse
from harness.ranks.pool import RankPool

CASE = parse("case/1 rows=3:111,4:1011 sp=2")


def main(stage: str, candidate: str) -> None:
    if stage == "again":
        with RankPool(2) as earlier:
            earlier.run(CASE, locate("native-gather"))
    # A shell lets processes in the background ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with RankPool(2, deadline=600) as pool:
        pool.start()
        if stage != "starting":
            pool.wait_until_ready()
        print(pool.pids()[0], flush=True)  # noqa: T201
        pool.run(CASE, locate(candidate))


if __name__ == "__main__":
    main(*sys.argv[1:])
