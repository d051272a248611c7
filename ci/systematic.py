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

from harness.campaign.coverage import of_any_layer
from harness.campaign.markdown import marked, table
from harness.campaign.tally import Tally
from harness.candidates import locate
from harness.case import Case, Dtype
from harness.compare import Comparison
from harness.generation.drawing import generate
from harness.generation.strategies import cases
from harness.judge import second_opinion
from harness.judge.stages import reference_traces
from harness.ranks.pool import RankPool
from harness.trace import GRADIENT, Assembly, Trace
from harness.verdict import PASSED

PAGE = ROOT / "docs" / "tolerances.md"
EVERY = "every gradient"
# Ten a decade, from below what fp64 allows up to a half.
ERRORS = [10 ** (-tenth / 10) for tenth in range(150, 2, -1)]


@dataclass(frozen=True, slots=True)
class Ran:
    """A case, what plain training makes of it, and what a right step made of it."""

    case: Case
    oracle: Trace
    baseline: Trace
    answer: Assembly

    def judged(self, name: str, error: float) -> Comparison:
        """With one tensor, or every gradient, a little larger than it was."""
        trace = Trace()
        for key in self.answer.trace:
            entry = self.answer.trace[key]
            meant = key.startswith(GRADIENT) if name == EVERY else of_any_layer(key) == name
            if meant:
                larger = (entry.values * (1 + error)).astype(entry.values.dtype)
                entry = replace(entry, values=larger)
            trace.put(key, entry)
        answer = replace(self.answer, trace=trace)
        told = self.case, "scaled", self.oracle, self.baseline, answer, "cpu"
        return second_opinion.judged(*told, source="the padded reference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=60, help="of each dtype, default: 60")
    count = parser.parse_args().cases
    with RankPool(4) as pool:
        columns = {dtype: column(ran(dtype, count, pool)) for dtype in get_args(Dtype)}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "") for column in columns.values())) for name in names]
    PAGE.write_text(marked(PAGE.read_text(), "systematic", table(("times 1 + …", *columns), rows)))


def ran(dtype: Dtype, count: int, pool: RankPool) -> list[Ran]:
    """Every case on ranks, once."""
    found = []
    for case in generate(cases(max_ranks=4, dtypes=(dtype,)), count, 2):
        answer = pool.run(case, locate("native-gather"))
        assert isinstance(answer, Assembly)
        found.append(Ran(case, *reference_traces(case), answer))
    return found


def column(found: Sequence[Ran]) -> dict[str, str]:
    """By tensor, what passes in every case alone, and what passes over all of them."""
    names = {of_any_layer(key) for each in found for key in each.answer.trace if key != "nll"}

    def each_passes(name: str, error: float) -> bool:
        return all(each.judged(name, error).verdict.passed for each in found)

    def all_pass(name: str, error: float) -> bool:
        tally = Tally()
        for each in found:
            tally.add(each.judged(name, error))
        return not tally.leans and tally.verdict in PASSED

    return {
        name: f"{largest(each_passes, name):.2g}, over all {largest(all_pass, name):.2g}"
        for name in (EVERY, "loss", *sorted(names - {"loss"}))
    }


def largest(passes: Callable[[str, float], bool], name: str) -> float:
    """The last that passes, where all do below it and none beyond."""
    at = bisect_left(ERRORS, True, key=lambda error: not passes(name, error))
    return ERRORS[at - 1] if at else 0.0


if __name__ == "__main__":
    main()
