"""A correct step passes in every layout, and faults are found and named in each of them."""

import pytest

from harness.candidates.own.benign import BANK
from harness.case import parse
from harness.compare import Verdict
from harness.generation import cases, draw_list
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate, evaluate_all
from properties.helpers.places import ROOT
from properties.planted.layouts import FAULTS, LAYOUTS

FILE = ROOT / "properties" / "planted" / "layouts.py"
NAMES = ("label-rolled-locally", "segment-leak", "gradient-partial")
BENIGN = [f"benign.{key}" for key, entry in BANK.items() if type(entry.candidate) in LAYOUTS]
# Both cases are cut inside their first row.
CASES = [parse(f"case/1 rows=7:1111111,2:11 heads=4/4 sp={sp}") for sp in (2, 4)]


def test_every_layout_is_in_the_bank_of_benign_variants() -> None:
    assert len(BENIGN) == len(LAYOUTS) == 10


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("count", [5, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize("candidate", BENIGN)
def test_a_correct_layout_passes(candidate: str, count: int, harness_pool: RankPool) -> None:
    drawn = draw_list(cases(sps=(2, 3, 4), max_ranks=4, dtypes=("fp64", "fp32")), count, seed=19)
    comparisons = list(evaluate_all(((case, candidate) for case in drawn), harness_pool))
    assert len(comparisons) == count
    for comparison in comparisons:
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow(but=5)
@pytest.mark.parametrize(("fault", "name"), list(zip(FAULTS, NAMES, strict=True)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fault_is_found_and_named_in_every_layout(
    layout: type, fault: type, name: str, harness_pool: RankPool
) -> None:
    for case in CASES:
        candidate = f"{FILE}:{layout.__name__}{fault.__name__}"
        comparison = evaluate(case, candidate, harness_pool)
        assert comparison.verdict is Verdict.DIVERGED
        assert comparison.inquiry.looks[0].name == name
