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

from harness.campaign.markdown import marked, table
from harness.case import Dtype
from harness.compare.budget import ROUNDING, TIMES, TIMES_ON_THE_WHOLE, UNITS
from harness.generation.drawing import generate
from harness.generation.strategies import cases
from harness.judge import evaluate_all
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.trace import GRADIENT

PAGE = ROOT / "docs" / "tolerances.md"
DIALECTS = ("native-gather", "native-local")
BIN, BAR = 0.1, "▏▎▍▌▋▊▉█"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of each dtype, default: 1000")
    options = parser.parse_args()
    text = marked(PAGE.read_text(), "factors", factors())
    PAGE.write_text(marked(text, "measured", measured(options.cases)))


def factors() -> str:
    """The factors as the code has them."""
    heads = ("dtype", "times", "times on the whole", "units", "rounding")
    return table(heads, map(factors_of, get_args(Dtype)))


def factors_of(dtype: Dtype) -> tuple[str, ...]:
    whole = TIMES_ON_THE_WHOLE.get(dtype)
    shown = f"{whole:g}" if whole else "not asked"
    return (dtype, f"{TIMES[dtype]:g}", shown, f"{UNITS[dtype]:g}", f"{ROUNDING[dtype]:.2g}")


def measured(count: int) -> str:
    """What a right step uses, dtype by dtype."""
    with RankPool(4) as pool:
        return "\n".join(section(dtype, count, pool) for dtype in get_args(Dtype))


def section(dtype: Dtype, count: int, pool: RankPool) -> str:
    batch = generate(cases(max_ranks=4, dtypes=(dtype,)), count, 1)
    found = list(evaluate_all(zip(batch, cycle(DIALECTS), strict=False), pool))
    failed = [comparison for comparison in found if not comparison.verdict.passed]
    assert not failed, explain(failed[0])
    used = [comparison.used for comparison in found]
    unjudged = sum(len(comparison.unjudged) for comparison in found)
    again = sum(comparison.asked_again for comparison in found)
    said = (
        f"**{dtype}**: {count} cases, {again} asked again, {unjudged} tensors not judged. "
        f"The largest share of a budget was {max(used):.2f}."
    )
    slack = [r.slack for c in found for r in c.keys if r.slack and r.key.startswith(GRADIENT)]
    if slack:
        median, most = np.quantile(slack, (0.5, 0.99))
        said += (
            f" A gradient as a whole may stray by {100 * median:.2g} % of itself (median), "
            f"and 99 of 100 gradients by at most {100 * most:.2g} %."
        )
    return "\n".join((*textwrap.wrap(said, 99), "", "```", *histogram(used), "```", ""))


def histogram(used: Sequence[float]) -> list[str]:
    """How many cases used which share of their budgets."""
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
