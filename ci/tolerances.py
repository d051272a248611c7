#!/usr/bin/env -S .venv/bin/python
"""How much of its budget a right step uses: measure, and write the tables of docs/tolerances.md.

Run it as `.venv/bin/python ci/tolerances.py`; with the default of 1000 cases it takes ten minutes.
"""

import argparse
import textwrap
from collections.abc import Sequence
from itertools import cycle
from typing import get_args

import numpy as np
from project import ROOT

from harness.campaign.markdown import replace_marked, table
from harness.case import Dtype
from harness.compare.budget import ROUNDING, TIMES, TIMES_ON_THE_WHOLE, UNITS
from harness.generation.drawing import draw_list
from harness.generation.strategies import cases
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.trace import GRADIENT
from properties.helpers.judging import evaluate_all

PAGE = ROOT / "docs" / "tolerances.md"
DIALECTS = ("native-gather", "native-local")
BIN, BAR = 0.1, "▏▎▍▌▋▊▉█"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of each dtype, default: 1000")
    results = measure(parser.parse_args().cases)
    PAGE.write_text(
        replace_marked(replace_marked(PAGE.read_text(), "factors", factors()), "measured", results)
    )


def factors() -> str:
    """Return a table of the factors in `harness.compare.budget`."""
    heads = ("dtype", "times", "times on the whole", "units", "rounding")
    whole = {dtype: f"{times:g}" for dtype, times in TIMES_ON_THE_WHOLE.items()}
    rows = (
        (d, f"{TIMES[d]:g}", whole.get(d, "not asked"), f"{UNITS[d]:g}", f"{ROUNDING[d]:.2g}")
        for d in get_args(Dtype)
    )
    return table(heads, rows)


def measure(count: int) -> str:
    """Measure how much of its budgets a right step uses, and return a section for each dtype."""
    with RankPool(4) as pool:
        return "\n".join(section(dtype, count, pool) for dtype in get_args(Dtype))


def section(dtype: Dtype, count: int, pool: RankPool) -> str:
    batch = draw_list(cases(max_ranks=4, dtypes=(dtype,)), count, 1)
    comparisons = list(evaluate_all(zip(batch, cycle(DIALECTS), strict=False), pool))
    for comparison in comparisons:
        assert comparison.verdict.passed, explain(comparison)
    used = [comparison.measured.used for comparison in comparisons]
    unjudged = sum(len(comparison.measured.unjudged) for comparison in comparisons)
    again = sum(comparison.asked_again for comparison in comparisons)
    text = (
        f"**{dtype}**: {count} cases, {again} asked again, {unjudged} tensors not judged. "
        f"The largest share of a budget was {max(used):.2f}."
    )
    results = [result for comparison in comparisons for result in comparison.measured.keys]
    slack = [r.slack for r in results if r.slack and r.key.startswith(GRADIENT)]
    if slack:
        median, most = np.quantile(slack, (0.5, 0.99))
        text += (
            f" A gradient as a whole may stray by {100 * median:.2g} % of itself (median), "
            f"and 99 of 100 gradients by at most {100 * most:.2g} %."
        )
    return "\n".join((*textwrap.wrap(text, 99), "", "```", *histogram(used), "```", ""))


def histogram(used: Sequence[float]) -> list[str]:
    """Draw how many cases used which share of their budgets, one line for each share."""
    counts, edges = np.histogram(np.minimum(used, 1.0), bins=np.arange(0.0, 1.0 + BIN, BIN))
    width = 40 / counts.max()
    return [
        f"{left:.1f} to {left + BIN:.1f}  {number:5d}  {bar(number * width)}".rstrip()
        for left, number in zip(edges, counts, strict=False)
    ]


def bar(length: float) -> str:
    whole, part = divmod(round(length * len(BAR)), len(BAR))
    return BAR[-1] * whole + (BAR[part - 1] if part else "")


if __name__ == "__main__":
    main()
