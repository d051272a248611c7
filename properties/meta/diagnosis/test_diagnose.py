"""A failure is named by experiments, from what every candidate must show."""

import re
from dataclasses import replace
from itertools import islice

import pytest

from harness.case import Case, parse
from harness.compare import Verdict
from harness.diagnosis import Evidence, diagnose
from harness.diagnosis.experiments import neighbours, plainer
from harness.judge import diagnosed, evaluate
from harness.judge.judge import reference_traces
from harness.ranks.pool import RankPool
from properties.planted import scratch

PLACE = f"{scratch.__file__}:"
ROWS = "rows=7:0011111,4:0111:left,6:110111 heads=4/2 layers=1 vocab=32"
CASES = (
    parse(f"case/1 {ROWS} sp=2 dp=1 window=3 seed=5"),
    parse(f"case/1 {ROWS} sp=4 dp=1 micro=3 seed=6"),
    replace(parse(f"case/1 {ROWS} sp=1 dp=1 seed=7"), dp=3),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_written_from_scratch_is_right(case: Case, harness_pool: RankPool) -> None:
    assert evaluate(case, f"{PLACE}SCRATCH", harness_pool).verdict.passed


@pytest.mark.parametrize("kind", scratch.WRONG, ids=lambda kind: kind.__name__)
def test_what_is_wrong_with_it_is_named(
    kind: type[scratch.Scratch], harness_pool: RankPool
) -> None:
    seen = evaluate(CASES[0], f"{PLACE}{kind.__name__.upper()}", harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).diagnosis
    assert root.name == scratch.WRONG[kind], root


def test_of_what_nothing_fits_is_told_what_it_is_not_and_when_it_is_gone(
    harness_pool: RankPool,
) -> None:
    seen = evaluate(CASES[0], f"{PLACE}ODD", harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).diagnosis
    assert root.name == "unclassified"
    assert "it is none of attention-cut, exchange-incomplete, future-leak, head-order" in root.why
    pair = re.search(r"(case/1 \S.*) goes wrong, and is right without a window$", root.why)
    assert pair
    fails = parse(pair[1])
    assert evaluate(fails, f"{PLACE}ODD", harness_pool).verdict is Verdict.DIVERGED
    assert evaluate(replace(fails, window=None), f"{PLACE}ODD", harness_pool).verdict.passed


def test_what_shows_on_one_case_alone_has_no_name(harness_pool: RankPool) -> None:
    seen = evaluate(CASES[0], f"{PLACE}NOWINDOW", harness_pool)
    asked: list[Case] = []

    def ask(case: Case) -> Evidence | None:
        asked.append(case)
        if len(asked) > 1:
            return None
        oracle, _ = reference_traces(CASES[0], traced=True)
        return Evidence(seen, oracle, oracle)

    assert diagnose(seen, ask) == ()
    assert len(asked) > 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_experiments_are_small_and_for_the_same_ranks_and_heads(case: Case) -> None:
    for changed in plainer(case):
        for near in islice(neighbours(case, changed), 30):
            assert near.sp == case.sp
            assert near.dp in (1, case.dp)
            assert (near.heads, near.kv_heads) == (case.heads, case.kv_heads)
            assert near.tokens <= max(24, 2 * len(near.rows))
            assert any(row.supervised() for row in near.rows)
