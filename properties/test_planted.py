"""A fault in the step is found, shrunk to what a person can read, and shown again."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.candidates import load
from harness.case import Dtype, parse
from harness.check import Request, check
from harness.compare import Comparison, Verdict
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.run import evaluate_all, evaluate_traced
from harness.search import generate
from harness.strategies import cases

PLANTED = Path(__file__).parent / "planted.py"
SECONDS = 60
# Fault: what is found to be wrong first once all is traced.
FAULTS = {
    "LOCAL_ROLL": "labels",
    "HEAD_ORDER": "layers.0.attn.out",
    "MISSING_SCALE": "grad.",
    "DROPPED_TAIL": "",
}


def found(name: str, pool: RankPool, seed: int) -> tuple[Comparison, float]:
    candidate = f"{PLANTED}:{name}"
    request = Request(
        candidates=(candidate,),
        sps=(1, 2, 4),
        dps=(1, 2),
        dtypes=("fp64",),
        losses=("token-mean", "micro-mean", "row-mean"),
        count=100,
        seed=seed,
    )
    summary = check(request, pool, Console(file=io.StringIO()))
    failure = summary.tallies[candidate].failure
    assert failure is not None, f"{name} was not found"
    return failure, summary.seconds


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shrinks_to_a_few_tokens_and_is_shown_again(
    name: str, harness_pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failure, seconds = found(name, harness_pool, seed=0)
    case = failure.case
    assert failure.verdict is Verdict.DIVERGED
    assert len(case.rows) <= 2, explain(failure)
    assert case.tokens <= case.sp + 2, explain(failure)
    assert seconds < SECONDS
    again = evaluate_traced(parse(str(case)), failure.candidate, harness_pool)
    assert again.verdict is Verdict.DIVERGED
    assert again.first == failure.first
    assert again.findings == failure.findings
    if failure.first:
        assert failure.first.key.startswith(FAULTS[name])


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_every_precision(
    name: str, dtype: Dtype, harness_pool: RankPool
) -> None:
    small = cases(dtypes=(dtype,), max_ranks=4, max_rows=2, max_length=6, max_layers=1)
    batch = generate(small, 12, 0)
    jobs = ((case, f"{PLANTED}:{name}") for case in batch)
    verdicts = {comparison.verdict for comparison in evaluate_all(jobs, harness_pool)}
    # In the other cases the fault has nothing to work on, or half precision cannot be judged.
    assert Verdict.DIVERGED in verdicts


def test_every_planted_fault_says_what_it_is() -> None:
    for name in FAULTS:
        assert type(load(f"{PLANTED}:{name}")).__doc__
