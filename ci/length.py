"""How seconds and memory grow with the tokens of a step: `ci/bench --length` shows it.

    .venv/bin/python ci/length.py TOKENS [DEVICE]

measures one size in a process of its own and prints JSON: a peak of memory is never forgotten.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression
from typing import Any

import torch
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from harness.candidates import Emit, Rank
from harness.candidates.native import LocalDialect
from harness.case import Case, Row
from harness.compare import compare
from harness.ranks.device import choose
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference
from harness.trace import Assembly

SHORTEST, LONGEST = 1 << 10, {"cpu": 1 << 13, "cuda": 1 << 16}
VOCABULARY = 1 << 15
DEADLINE = 600.0
# Whose peaks of memory.
WHOSE = ("largest rank, MB", "controller, MB")
# A folder where each rank writes down how much of its GPU it has held.
PEAKS = "HARNESS_BENCH_PEAKS"


class Weighed(LocalDialect):
    """The native step; on a GPU it leaves behind the most memory that it held."""

    name = "native-local-weighed"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(case, rank, emit)
        if rank.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(rank.device)
            Path(os.environ[PEAKS], str(rank.index)).write_text(str(peak))


WEIGHED = Weighed()


def long_case(tokens: int) -> Case:
    """One long row and two that are not, padded on either side, each behind a prompt."""
    long, short = tokens * 3 // 4, tokens // 6
    lengths = (long, short, tokens - long - short)
    masks = ["0" * (length // 4) + "1" * (length - length // 4) for length in lengths]
    return Case(
        rows=(Row(masks[0]), Row(masks[1], "left"), Row(masks[2])),
        heads=8,
        kv_heads=2,
        head_dim=16,
        layers=2,
        vocab=VOCABULARY,
        dtype="fp32",
        kernel="sdpa",
    )


def measure(tokens: int, device: str) -> dict[str, Any]:
    """One size, from starting the ranks to the verdict."""
    case = long_case(tokens)
    name = f"{Path(__file__).resolve()}:WEIGHED"
    placement = choose(device, "auto", case.ranks)
    with (
        tempfile.TemporaryDirectory() as peaks,
        RankPool(case.ranks, placement, deadline=DEADLINE) as pool,
    ):
        os.environ[PEAKS] = peaks  # ranks inherit it
        moments = [time.perf_counter()]
        assert pool.wait_until_ready() is None
        pool.submit(case, name)
        moments.append(time.perf_counter())
        oracle = reference(case, torch.float64, device=device)
        moments.append(time.perf_counter())
        baseline = reference(case, TORCH_DTYPES[case.dtype], device=device)
        moments.append(time.perf_counter())
        outcome = pool.collect()
        moments.append(time.perf_counter())
        assert isinstance(outcome, Assembly), outcome
        comparison = compare(case, Weighed.name, oracle, [baseline], outcome)
        moments.append(time.perf_counter())
        ranks = (
            [int(path.read_text()) for path in Path(peaks).iterdir()]
            if device == "cuda"
            else [peak_bytes(pid) for pid in pool.pids()[1:]]
        )
    assert comparison.verdict.passed, comparison
    own = torch.cuda.max_memory_allocated() if device == "cuda" else peak_bytes(os.getpid())
    parts = ("start of ranks", "oracle", "baseline", "wait for ranks", "comparison")
    return {
        "tokens": tokens,
        "verdict": comparison.verdict.name,
        "share of budget used": comparison.used,
        "seconds": moments[-1] - moments[0],
        "seconds of": {
            part: later - earlier
            for part, (earlier, later) in zip(parts, pairwise(moments), strict=True)
        },
        "largest rank, MB": max(ranks) / 1e6,
        "controller, MB": own / 1e6,
    }


def measured(device: str) -> list[dict[str, Any]]:
    """Each size in a process of its own, twice as many tokens every time."""
    tokens, found = SHORTEST, []
    while tokens <= LONGEST[device]:
        command = [sys.executable, __file__, str(tokens), device]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(run.stdout))
        tokens *= 2
    return found


def growth(found: list[dict[str, Any]], whose: str) -> dict[str, float]:
    """The straight line through what was measured, and whether there is one."""
    tokens, peaks = ([each[key] for each in found] for key in ("tokens", whose))
    slope, start = linear_regression(tokens, peaks)
    added = [later - earlier for earlier, later in pairwise(peaks)]
    return {
        "MB at no tokens": start,
        "MB per 1,000 tokens": 1000 * slope,
        # Two where memory grows with the tokens, four where it grows with their square.
        "last doubling added, in what the one before it did": added[-1] / added[-2],
    }


def show(found: list[dict[str, Any]]) -> None:
    console = Console()
    console.print(f"one step over 2 ranks, vocabulary {VOCABULARY:,}, and its judgement")
    table = Table(box=None)
    columns = ("tokens", "seconds", *WHOSE)
    for heading in columns:
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(*(f"{each[key]:,.0f}" for key in columns))
    console.print(table)
    for whose in WHOSE:
        bars = Table(title=f"\npeak of the {whose}", title_justify="left", box=None)
        bars.show_header = False
        for each in found:
            most = max(each[whose] for each in found)
            bars.add_row(f"{each['tokens']:,}", Bar(most, 0, each[whose], width=60))
        console.print(bars)
        start, slope, bend = growth(found, whose).values()
        console.print(
            f"{start:,.0f} MB and {slope:,.0f} per 1,000 tokens; the last doubling added "
            f"{bend:.1f} times what the one before it did (2: linear, 4: quadratic)"
        )


def peak_bytes(pid: int) -> int:
    """The most memory a process has held at a time."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel says how much memory a process has held")


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
