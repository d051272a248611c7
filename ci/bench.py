#!/usr/bin/env -S .venv/bin/python
"""How much the harness costs beyond the forward and backward that it runs.

Medians over alternating rounds within one run, because machines drift. With --rate it measures
cases per second, and nothing else; with --pools 1,2,4 how they grow with pools; with --length how
seconds and memory grow with the tokens of a step. Run it as `.venv/bin/python ci/bench.py`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import length
from bare import BATCH
from rich.console import Console
from rich.table import Table

from harness.candidates import locate
from harness.case import Case
from harness.generation.drawing import draw_list
from harness.generation.strategies import cases
from harness.ranks.device import choose_placement
from harness.ranks.pool import RankPool
from harness.trace import Assembly
from properties.helpers.judging import evaluate_all

BARE = Path(__file__).resolve().parent / "bare.py"
# `check` runs each case once in either dialect, against the same references.
DIALECTS = ("native-gather", "native-local")
SIZES = (2, 4)
# Seconds for one case; for the pool, the whole bare loop is one case.
DEADLINE = 120.0
HARNESS = "harness, cases/s"
# Cases that are drawn to measure how long drawing one takes.
DRAWS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="per round, default: 40")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--rate", action="store_true")
    parser.add_argument("--pools", help="whole campaigns on so many pools", metavar="LIST")
    sizes = "of so many tokens, or of ever more"
    parser.add_argument("--length", type=int, nargs="?", const=0, help=sizes, metavar="TOKENS")
    place = "with --rate or --length, default: cpu"
    parser.add_argument("--device", choices=length.LONGEST, default="cpu", help=place)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any]
    if options.length is not None:
        results = length.measure_all(options.device, options.length)
    elif options.pools:
        pools = [int(number) for number in options.pools.split(",")]
        results = {"whole campaigns": compare_pools(pools, options.cases, options.rounds)}
    elif options.rate:
        results = {
            f"sp {sp}": measure_rates(batch_for(sp, options.cases), options.rounds, options.device)
            for sp in SIZES
        }
    else:
        results = {f"sp {sp}": measure(sp, options.cases, options.rounds) for sp in SIZES}
        draw = partial(draw_list, cases(), DRAWS, 0)
        results["without ranks"] = {
            "--help, seconds": median(seconds_of(show_help) for _ in range(5)),
            "drawing a case, ms": 1e3 * seconds_of(draw) / DRAWS,
        }
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        (show if options.length is None else length.show)(results)


def batch_for(sp: int, count: int) -> list[Case]:
    return draw_list(cases(sps=(sp,), dps=(1,), dtypes=("fp64",)), count, 0)


def measure(sp: int, count: int, rounds: int) -> dict[str, Any]:
    """Measure every figure for one sp, on CPUs."""
    batch = batch_for(sp, count)
    starts, bare_starts, torchruns, checks = [], [], [], []
    for _ in range(3):
        with RankPool(sp) as pool:
            starts.append(seconds_of(partial(start, pool)))
        bare_starts.append(run_torchrun(sp, None)[0])
        torchruns.append(run_torchrun(sp, batch[0])[1])
        checks.append(seconds_of(partial(run_check, 1, sp)))
    rates = measure_rates(batch, rounds, "cpu")
    per_case = median(torchruns)
    return {
        **rates,
        "torchrun for every case, seconds": per_case,
        "harness / torchrun for every case": rates[HARNESS] * per_case,
        "pool start, seconds": median(starts),
        "bare torchrun start, seconds": median(bare_starts),
        "pool start / bare torchrun start": median(map(truediv, starts, bare_starts)),
        "check of one case, seconds": median(checks),
        "check of one case / torchrun for one": median(map(truediv, checks, torchruns)),
    }


def compare_pools(pools: list[int], count: int, rounds: int) -> dict[str, Any]:
    """Measure the cases per second of a whole `check`, for each number of pools."""
    times: dict[int, list[float]] = {number: [] for number in pools}
    for _ in range(rounds):
        for number in pools:
            times[number].append(seconds_of(partial(run_check, count, 2, "--pools", str(number))))
    rates = {f"{n} pools, cases/s": count / median(each) for n, each in times.items()}
    first, *others = times.values()
    speedups = {
        f"{n} pools / {pools[0]}": median(map(truediv, first, each))
        for n, each in zip(pools[1:], others, strict=True)
    }
    return {**rates, **speedups}


def run_check(count: int, sp: int, *more: str) -> None:
    """Run the command `check` from its start to its end."""
    words = ["--cases", str(count), "--sp", str(sp), "--dp", "1", "--candidate", DIALECTS[1]]
    command = [sys.executable, "-m", "harness", "check", *words, *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure_rates(batch: list[Case], rounds: int, device: str) -> dict[str, Any]:
    """Measure the cases per second of the harness and of a bare loop, in turn on one pool."""
    size, steps = batch[0].sp, len(batch) * len(DIALECTS)
    harness_rates, bare_rates = [], []
    with (
        tempfile.NamedTemporaryFile("w") as lines,
        RankPool(size, choose_placement(device, "auto", size), deadline=DEADLINE) as pool,
    ):
        lines.write("\n".join(map(str, batch)))
        lines.flush()
        os.environ[BATCH] = lines.name  # ranks inherit it
        judge(batch, pool)  # warm up
        for _ in range(rounds):
            harness_rates.append(steps / seconds_of(partial(judge, batch, pool)))
            bare_rates.append(steps / bare_seconds(batch, pool))
        memory = max(length.peak_bytes(pid) for pid in pool.pids()[1:])
    pairs = list(map(truediv, harness_rates, bare_rates))
    return {
        HARNESS: median(harness_rates),
        "bare loop on the same ranks, cases/s": median(bare_rates),
        "harness / bare loop": median(pairs),
        "harness / bare loop, least and most": [min(pairs), max(pairs)],
        "peak memory per rank, MB": memory / 1e6,
    }


def judge(batch: list[Case], pool: RankPool) -> None:
    """Judge each case in either dialect, and require that it passes."""
    for comparison in evaluate_all(product(batch, DIALECTS), pool):
        assert comparison.verdict.passed, comparison


def bare_seconds(batch: list[Case], pool: RankPool) -> float:
    """Run the same steps in a loop on the same ranks; return the seconds that it measured."""
    outcome = pool.run(batch[0], locate(f"{BARE}:LOOP"), traced=True)
    assert isinstance(outcome, Assembly), outcome
    return float(outcome.trace["seconds"].values)


def start(pool: RankPool) -> None:
    fault = pool.wait_until_ready()
    assert fault is None, fault


def run_torchrun(sp: int, case: Case | None) -> tuple[float, float]:
    """Return the seconds until all ranks of a torchrun are up, and until all have ended."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--local-addr", "127.0.0.1",
            "--nproc-per-node", str(sp), str(BARE), *([] if case is None else [str(case)]),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(sp):
        line = process.stdout.readline()
        assert line == "ready\n", line
    until_ready = time.perf_counter() - started
    assert process.wait() == 0
    return until_ready, time.perf_counter() - started


def seconds_of(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def show_help() -> None:
    command = [sys.executable, "-m", "harness", "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def show(results: dict[str, dict[str, Any]]) -> None:
    for title, figures in results.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name, value in figures.items():
            values = value if isinstance(value, list) else [value]
            table.add_row(name, " .. ".join(f"{v:.3g}" for v in values))
        Console().print(table)


if __name__ == "__main__":
    main()
