"""Mutants diverge in every dtype, on small cases."""

import pytest

from harness.case import Dtype
from harness.compare import Verdict
from harness.generation import cases, draw_list
from harness.ranks.pool import RankPool
from properties.helpers.judging import evaluate_all


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["B14", "B42", "B101"])
def test_a_mutant_diverges_in_every_dtype_within_twelve_cases(
    name: str, dtype: Dtype, harness_pool: RankPool
) -> None:
    small = cases(dtypes=(dtype,), max_ranks=4, max_rows=2, max_length=6, max_layers=1)
    batch = draw_list(small, 12, 0)
    jobs = ((case, f"mutants.{name}") for case in batch)
    verdicts = (comparison.verdict for comparison in evaluate_all(jobs, harness_pool))
    # On some of the cases the fault has no effect, and some cannot be judged in this dtype.
    assert any(verdict is Verdict.DIVERGED for verdict in verdicts)
