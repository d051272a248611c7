"""A controller with half of its ranks on another host, to be killed in its last case."""

import sys

from harness.case import parse
from harness.judge import evaluate
from harness.ranks.nodes import Nodes
from harness.ranks.pool import RankPool
from properties.helpers.places import PLANTED

CASE = parse("case/1 rows=5:11111,4:1011 sp=4 heads=4/4")
SLEEPS = f"{PLANTED / 'faulty.py'}:SLEEPS"


def main(endpoint: str) -> None:
    with RankPool(4, nodes=Nodes(2, endpoint), deadline=600) as pool:
        for candidate in ("native-local", "mutants.B14"):
            print(evaluate(CASE, candidate, pool).verdict.name, flush=True)  # noqa: T201
        print(pool.pids()[0], flush=True)  # noqa: T201
        pool.run(CASE, SLEEPS)


if __name__ == "__main__":
    main(*sys.argv[1:])
