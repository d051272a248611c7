"""A fault in the step is found in every precision."""

import pytest

from harness.case import Dtype
from harness.compare import Verdict
from harness.generation import cases, generate
from harness.ranks.pool import RankPool
from properties.helpers.judging import evaluate_all


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["B14", "B42", "B101"])
def test_a_planted_fault_is_found_in_every_precision(
    name: str, dtype: Dtype, harness_pool: RankPool
) -> None:
    small = cases(dtypes=(dtype,), max_ranks=4, max_rows=2, max_length=6, max_layers=1)
    batch = generate(small, 12, 0)
    jobs = ((case, f"mutants.{name}") for case in batch)
    verdicts = (comparison.verdict for comparison in evaluate_all(jobs, harness_pool))
    # In the cases before it the fault has nothing to work on, or they cannot be judged.
    assert any(verdict is Verdict.DIVERGED for verdict in verdicts)
