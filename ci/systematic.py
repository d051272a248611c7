#!/usr/bin/env -S .venv/bin/python
"""How large an error may be that is the same in every case: measure, for docs/tolerances.md.

A right step runs the cases of a campaign. Then one tensor, or every gradient, is taken times a
factor in all of them, and the largest factor is looked for with which each case still passes; and
the largest with which the campaign still passes, which sees all cases together.
"""

import argparse
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from project import ROOT

from harness.campaign.coverage import without_layer_number
from harness.campaign.markdown import replace_marked, table
from harness.campaign.tally import Tally
from harness.candidates import locate
from harness.case import Case, Dtype
from harness.compare import Comparison
from harness.generation.drawing import draw_list
from harness.generation.strategies import cases
from harness.judge import second_opinion
from harness.judge.stages import reference_traces
from harness.ranks.pool import RankPool
from harness.trace import GRADIENT, Assembly, Trace
from harness.verdict import PASSED

PAGE = ROOT / "docs" / "tolerances.md"
EVERY = "every gradient"
# Ten errors per decade, from one that fp64 hides up to a half.
ERRORS = [10 ** (-tenth / 10) for tenth in range(150, 2, -1)]


@dataclass(frozen=True, slots=True)
class Run:
    """A case, its references, and what a right step computed on it."""

    case: Case
    oracle: Trace
    baseline: Trace
    answer: Assembly

    def judge(self, name: str, error: float) -> Comparison:
        """Judge the answer with one tensor, or every gradient, larger by a relative error."""
        trace = Trace()
        for key in self.answer.trace:
            entry = self.answer.trace[key]
            is_meant = (
                key.startswith(GRADIENT) if name == EVERY else without_layer_number(key) == name
            )
            if is_meant:
                larger = (entry.values * (1 + error)).astype(entry.values.dtype)
                entry = replace(entry, values=larger)
            trace.put(key, entry)
        answer = replace(self.answer, trace=trace)
        evidence = self.case, "scaled", self.oracle, self.baseline, answer, "cpu"
        return second_opinion.judged(*evidence, source="the padded reference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=60, help="of each dtype, default: 60")
    count = parser.parse_args().cases
    with RankPool(4) as pool:
        columns = {dtype: column(run(dtype, count, pool)) for dtype in get_args(Dtype)}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "") for column in columns.values())) for name in names]
    PAGE.write_text(
        replace_marked(PAGE.read_text(), "systematic", table(("times 1 + …", *columns), rows))
    )


def run(dtype: Dtype, count: int, pool: RankPool) -> list[Run]:
    """Draw cases, and run each once on ranks."""
    runs = []
    for case in draw_list(cases(max_ranks=4, dtypes=(dtype,)), count, 2):
        answer = pool.run(case, locate("native-gather"))
        assert isinstance(answer, Assembly)
        runs.append(Run(case, *reference_traces(case), answer))
    return runs


def column(runs: Sequence[Run]) -> dict[str, str]:
    """Return for each tensor the largest error that passes in each case, and over all of them."""
    names = {
        without_layer_number(key) for each in runs for key in each.answer.trace if key != "nll"
    }

    def passes_alone(name: str, error: float) -> bool:
        return all(each.judge(name, error).verdict.passed for each in runs)

    def passes_together(name: str, error: float) -> bool:
        tally = Tally()
        for each in runs:
            tally.add(each.judge(name, error))
        return not tally.leans and tally.verdict in PASSED

    return {
        name: f"{largest(passes_alone, name):.2g}, over all {largest(passes_together, name):.2g}"
        for name in (EVERY, "loss", *sorted(names - {"loss"}))
    }


def largest(passes: Callable[[str, float], bool], name: str) -> float:
    """Return the largest error that passes, by bisection: smaller errors pass as well."""
    at = bisect_left(ERRORS, True, key=lambda error: not passes(name, error))
    return ERRORS[at - 1] if at else 0.0


if __name__ == "__main__":
    main()
