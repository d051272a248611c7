"""Score all rivals on every mutant, and print the table of docs/mutants.md."""

import sys
from typing import get_args

from harness.campaign.case_source import draw
from harness.campaign.markdown import table
from harness.campaign.request import Request
from harness.candidates.own.mutants import NATIVE
from harness.case import LossContract
from harness.ranks.pool import RankPool
from properties.rivals.contest import GENERATED, contest, on_own_shapes

RANKS = 4
REQUEST = Request(
    candidates=("native-local",),
    sps=(1, 2, 4),
    dps=(1, 2),
    dtypes=("fp64", "fp32"),
    losses=get_args(LossContract),
    count=GENERATED,
    seed=0,
)


def main() -> None:
    with RankPool(RANKS, deadline=10.0) as pool:
        standings = contest(list(NATIVE.values()), draw(REQUEST, RANKS), pool)
        heads = ("rule", "own shapes", "our cases", "flags what is right", "source")
        rows = []
        for standing in standings:
            flags = "yes" if standing.false_alarms else "no"
            found = on_own_shapes(standing, pool.size), str(len(standing.on_generated))
            rows.append((standing.name, *found, flags, standing.source))
    sys.stdout.write(table(heads, rows))


if __name__ == "__main__":
    main()
