"""The programs that the benchmark measures the harness against run to their end."""

import os
import sys
from pathlib import Path

import bare
import bench
import length
import pytest

from harness.candidates import locate
from harness.case import parse
from harness.ranks.pool import RankPool
from harness.trace import Assembly
from properties.helpers.commands import run_to_end
from properties.helpers.judging import evaluate
from properties.helpers.places import ROOT

CASE = parse("case/1 rows=3:111,4:1011 sp=2")
LOOP = """
import os, sys
os.environ[{variable!r}] = {cases!r}
sys.path.append({ci!r})
from bare import LOOP
"""


@pytest.mark.slow
def test_the_bare_loop_runs_its_cases_on_the_ranks_of_a_pool(
    harness_pool: RankPool, tmp_path: Path
) -> None:
    (tmp_path / "cases").write_text(f"{CASE}\n{CASE}")
    loop, cases = tmp_path / "loop.py", str(tmp_path / "cases")
    loop.write_text(LOOP.format(variable=bare.BATCH, cases=cases, ci=str(ROOT / "ci")))
    outcome = harness_pool.run(CASE, locate(f"{loop}:LOOP"), traced=True)
    assert isinstance(outcome, Assembly), outcome
    assert float(outcome.trace["seconds"].values) > 0


@pytest.mark.slow
def test_one_case_runs_as_a_program_of_its_own() -> None:
    done = run_to_end(
        *(sys.executable, bare.__file__, "case/1 rows=3:111,4:1011"),
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr


@pytest.mark.slow
def test_the_step_whose_memory_is_measured_passes(harness_pool: RankPool) -> None:
    case = length.long_case(64)
    comparison = evaluate(case, f"{length.__file__}:WEIGHED", harness_pool)
    assert comparison.verdict.passed, comparison
    assert length.peak_bytes(os.getpid()) > 1e6


@pytest.mark.long
def test_whole_campaigns_are_timed_for_each_number_of_pools() -> None:
    figures = bench.compare_pools([1, 2], 4, 1)
    assert list(figures) == ["1 pools, cases/s", "2 pools, cases/s", "2 pools / 1"]
    assert min(figures.values()) > 0
