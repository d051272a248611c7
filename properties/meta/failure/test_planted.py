"""A fault in the step is found, shrunk to what a person can read, and shown again."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from harness.campaign.check import check
from harness.campaign.request import Request
from harness.case import Dtype
from harness.cli import main
from harness.compare import Comparison, Verdict
from harness.generation import cases, generate
from harness.judge import evaluate_all
from harness.ranks.pool import RankPool
from harness.report import explain

SECONDS = 60
# Fault: what its explanation says.
FAULTS = {
    "B14": "first   labels, row 0 position 0",
    "B42": "first   layers.0.attn.out",
    "B101": "every gradient is 2 of the reference = sp",
    "B01": "reported by no rank",
}


def found(name: str, pool: RankPool, seed: int) -> tuple[Comparison, float]:
    candidate = f"mutants.{name}"
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
    name: str,
    harness_pool: RankPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "harness.commands.repro.open_pool", lambda *_: contextlib.nullcontext(harness_pool)
    )
    failure, seconds = found(name, harness_pool, seed=0)
    case = failure.case
    assert failure.verdict is Verdict.DIVERGED
    assert len(case.rows) <= 2, explain(failure)
    assert case.tokens <= case.sp + 2, explain(failure)
    assert seconds < SECONDS
    said = explain(failure)
    assert FAULTS[name] in said
    (command,) = re.findall(r"^  replay  python -m harness (.*)", said, re.MULTILINE)
    assert main(shlex.split(command)) == 1
    again = capsys.readouterr().out
    # Not the last lines: a candidate named by its path has no bundle of its own.
    assert again.splitlines()[:4] == said.splitlines()[:4]


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_every_precision(
    name: str, dtype: Dtype, harness_pool: RankPool
) -> None:
    small = cases(dtypes=(dtype,), max_ranks=4, max_rows=2, max_length=6, max_layers=1)
    batch = generate(small, 12, 0)
    jobs = ((case, f"mutants.{name}") for case in batch)
    verdicts = (comparison.verdict for comparison in evaluate_all(jobs, harness_pool))
    # In the cases before it the fault has nothing to work on, or they cannot be judged.
    assert any(verdict is Verdict.DIVERGED for verdict in verdicts)
