"""Measure how seconds and memory grow with the tokens of a step, for `ci/bench.py --length`.

    .venv/bin/python ci/length.py TOKENS [DEVICE]

measures one size and prints JSON. Each size needs a process of its own, because the peak of a
process's memory never falls.
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
from rich.console import Console
from rich.table import Table

from harness.candidates import Emit, Rank, locate
from harness.candidates.own.native import LocalDialect
from harness.case import Case, parse
from harness.compare import compare
from harness.ranks.device import choose_placement
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference
from harness.trace import Assembly

SHORTEST, LONGEST = 1 << 10, {"cpu": 1 << 13, "cuda": 1 << 16}
VOCABULARY = 1 << 15
DEADLINE = 600.0
# The processes whose peaks of memory are measured, in MB; the names are keys of the document.
PROCESSES = ("largest rank", "controller")
# The variable that names a folder, in which each rank writes the peak of its GPU memory.
PEAKS = "HARNESS_BENCH_PEAKS"


class Weighed(LocalDialect):
    """The native step; on a GPU it writes the peak of its memory into a file."""

    name = "native-local-weighed"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(case, rank, emit)
        if rank.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(rank.device)
            Path(os.environ[PEAKS], str(rank.index)).write_text(str(peak))


WEIGHED = Weighed()


def long_case(tokens: int, device: str = "cpu") -> Case:
    """Return a case of three rows: one has half the tokens, another is padded on the left."""
    # For shared kv heads in fp32, torch has no kernel on CUDA whose memory grows with the tokens.
    kv_heads = 8 if device == "cuda" else 2
    half, third = tokens // 2, tokens // 3
    sides = ((half, ""), (third, ":left"), (tokens - half - third, ""))
    rows = ",".join(f"{n}:0{{{n // 2}}}1{{{n - n // 2}}}{side}" for n, side in sides)
    model = f"heads=8/{kv_heads} layers=2 vocab={VOCABULARY} dim=16 dtype=fp32 kernel=sdpa"
    return parse(f"case/1 rows={rows} {model} sp=2")


def measure(tokens: int, device: str) -> dict[str, Any]:
    """Measure one size, from the start of the ranks to the verdict."""
    case = long_case(tokens, device)
    with (
        tempfile.TemporaryDirectory() as peaks,
        RankPool(
            case.ranks, choose_placement(device, "auto", case.ranks), deadline=DEADLINE
        ) as pool,
    ):
        os.environ[PEAKS] = peaks  # ranks inherit it
        moments = {"": time.perf_counter()}
        assert pool.wait_until_ready() is None
        pool.submit(case, locate(f"{Path(__file__).resolve()}:WEIGHED"))
        moments["start of ranks"] = time.perf_counter()
        oracle = reference(case, torch.float64, device=device)
        moments["oracle"] = time.perf_counter()
        baseline = reference(case, TORCH_DTYPES[case.dtype], device=device)
        moments["baseline"] = time.perf_counter()
        outcome = pool.collect()
        moments["wait for ranks"] = time.perf_counter()
        assert isinstance(outcome, Assembly), outcome
        comparison = compare(case, Weighed.name, oracle, [baseline], outcome)
        moments["comparison"] = time.perf_counter()
        if device == "cuda":
            ranks = [int(path.read_text()) for path in Path(peaks).iterdir()]
        else:
            ranks = [peak_bytes(pid) for pid in pool.pids()[1:]]
    assert comparison.verdict.passed, comparison
    own = torch.cuda.max_memory_allocated() if device == "cuda" else peak_bytes(os.getpid())
    (_, started), *_, (_, ended) = moments.items()
    return {
        "tokens": tokens,
        "verdict": comparison.verdict.name,
        "share of budget used": comparison.measured.used,
        "seconds": ended - started,
        "seconds of": {part: t - s for (_, s), (part, t) in pairwise(moments.items())},
        "largest rank": max(ranks) / 1e6,
        "controller": own / 1e6,
    }


def measure_all(device: str, only: int = 0) -> dict[str, Any]:
    """Measure `only` this size, or each power of two up to the longest; return the document."""
    tokens, sizes = only or SHORTEST, []
    while tokens <= (only or LONGEST[device]):
        command = [sys.executable, __file__, str(tokens), device]
        sizes.append(json.loads(subprocess.check_output(command)))
        tokens *= 2
    return document(sizes)


def document(sizes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document of several sizes; it has no growth if there is only one."""
    lines = {process: growth(sizes, process) for process in PROCESSES if len(sizes) > 1}
    return {"sizes": sizes, "growth": lines}


def growth(sizes: list[dict[str, Any]], process: str) -> dict[str, Any]:
    """Fit a line to the memory of a process over tokens; without a defect it is straight."""
    tokens, peaks = ([size[key] for size in sizes] for key in ("tokens", process))
    slope, start = linear_regression(tokens, peaks)
    steps = zip(pairwise(tokens), pairwise(peaks), strict=True)
    return {
        "MB at no tokens": start,
        "MB per 1,000 tokens": 1000 * slope,
        "from each size to the next": [1000 * (q - p) / (n - m) for (m, n), (p, q) in steps],
        "of the last doubling, times": peaks[-1] / peaks[-2],
    }


def show(document: dict[str, Any]) -> None:
    console = Console()
    console.print(f"one step over 2 ranks, vocabulary {VOCABULARY:,}, and its judgement")
    table = Table("tokens", "seconds", *(f"MB, {process}" for process in PROCESSES), box=None)
    for size in document["sizes"]:
        peaks = (f"{size[process]:,.0f}" for process in PROCESSES)
        table.add_row(f"{size['tokens']:,}", f"{size['seconds']:.0f}", *peaks)
    console.print(table)
    for process, line in document["growth"].items():
        steps = ", ".join(f"{more:,.0f}" for more in line["from each size to the next"])
        console.print(
            f"{process}: {line['MB at no tokens']:,.0f} MB and {line['MB per 1,000 tokens']:,.0f} "
            f"for every 1,000 tokens ({steps} from each size to the next); the last doubling of "
            f"tokens multiplied memory by {line['of the last doubling, times']:.2f}"
        )


def peak_bytes(pid: int) -> int:
    """Return the peak of a process's resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
