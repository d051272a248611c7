#!/usr/bin/env -S .venv/bin/python
"""Faults at random, one after the other: each must be told as what it is, and be over.

Run it as `.venv/bin/python ci/chaos.py SEED MINUTES`. Of each fault it asks: is its kind right,
and the rank that is blamed; was it told in time; is the next case right; is anything left. It
prints a table, and fails at the first fault of which something is not as it should be.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from project import ROOT

from harness.campaign.markdown import table
from harness.case import parse
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind
from properties.helpers.alive import address_of, left_behind

FAULTY = ROOT / "properties" / "planted" / "faulty.py"
RIGHT = "native-local"
CASES = [
    parse(f"case/1 {fields}")
    for fields in (
        "rows=3:111,4:1011 sp=2",
        "rows=5:11011,2:11:left sp=2 micro=2 dtype=fp32",
        "rows=6:110110 sp=2 heads=4/2 layers=2 dtype=bf16",
    )
]
DEADLINE, START_DEADLINE, MARGIN = 3.0, 20.0, 10.0
# Who is struck, by its place among the pool's processes; by what; and when.
TARGETS = {"torchrun": 0, "rank 0": 1, "rank 1": 2}
DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS")
STARTING, IDLE, IN_A_CASE = "while it starts", "between cases", "in a case"
# What planted candidates do to rank 1, and what may be told of it.
PLANTED = {
    "SLEEPS": {Kind.HUNG},
    "SLEEPS_ELSEWHERE": {Kind.HUNG},
    "SPINS": {Kind.HUNG},
    "DEAF": {Kind.HUNG},
    "LEAVES_A_DAEMON": {Kind.HUNG},
    "DIES": {Kind.DIED},
    "LEAVES_CHILDREN": {Kind.DIED},
    "BAD_TOKENS": {Kind.RAISED},
    "LEAVES_WITH_A_LONG_WORD": {Kind.RAISED},
    "TALKS_GARBAGE": {Kind.PROTOCOL},
}


@dataclass(frozen=True)
class Trouble:
    """A fault to come, and what may be told of it."""

    name: str
    candidate: str
    kinds: frozenset[Kind]
    # Who is to blame, if anybody.
    rank: int | None
    # Of a signal: which, to whom and when.
    number: str = ""
    target: int = 0
    moment: str = ""


def troubles() -> Iterator[Trouble]:
    """Every kind there is."""
    for name, kinds in PLANTED.items():
        yield Trouble(name, f"{FAULTY}:{name}", frozenset(kinds), 1)
    for (who, target), number, moment in product(
        TARGETS.items(), (*DEADLY, "SIGSTOP"), (STARTING, IDLE, IN_A_CASE)
    ):
        if number == "SIGSTOP" and who == "torchrun":
            # Ranks go on without it.
            continue
        kinds = {Kind.LAUNCHER if who == "torchrun" else Kind.DIED}
        if number == "SIGSTOP":
            kinds = {Kind.HUNG}
        if moment == STARTING:
            # It may be up by the time that it is struck.
            kinds |= {Kind.START}
        candidate = f"{FAULTY}:SLEEPS_BOTH" if moment == IN_A_CASE else RIGHT
        rank = target - 1 if target else None
        name = f"{number} to {who} {moment}"
        yield Trouble(name, candidate, frozenset(kinds), rank, number, target, moment)


def main() -> None:
    seed, minutes = int(sys.argv[1]), float(sys.argv[2])
    draw, every = random.Random(seed), list(troubles())  # noqa: S311 - nothing to hide
    until = time.monotonic() + 60 * minutes
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    with RankPool(2, deadline=DEADLINE, start_deadline=START_DEADLINE) as pool:
        while time.monotonic() < until:
            trouble = draw.choice(every)
            took, wrong = suffered(trouble, pool, draw)
            if took is None:
                continue
            seconds[trouble.name].append(took)
            if wrong:
                count = sum(map(len, seconds.values()))
                sys.exit(f"chaos {seed}, fault {count}, {trouble.name}: {wrong}")
    rows = ((name, str(len(its)), f"{median(its):.1f}") for name, its in sorted(seconds.items()))
    print(table(("fault", "times", "median seconds until it is told"), rows))
    print(f"{sum(map(len, seconds.values()))} faults of {len(seconds)} kinds, no miss")


def suffered(trouble: Trouble, pool: RankPool, draw: random.Random) -> tuple[float | None, str]:
    """Seconds until it was told, or nothing where nobody was struck; and what went wrong."""
    starting = trouble.moment == STARTING
    if starting:
        pool.close()
        pool.start()
    elif fault := pool.wait_until_ready():
        return 0.0, f"no ranks: {fault.summary}"
    address = address_of(pool.pids()[0])
    hit: list[int] = []
    blow = threading.Timer(draw.uniform(0.2, 0.6), strike, (trouble, pool.pids()[0], hit))
    if trouble.number and trouble.moment != IDLE:
        blow.start()
    elif trouble.number:
        strike(trouble, pool.pids()[0], hit)
        time.sleep(0.1)
    began = time.monotonic()
    outcome = pool.run(draw.choice(CASES), trouble.candidate)
    took = time.monotonic() - began
    if blow.ident:
        blow.join()
    if starting:
        # Ranks that did not come up once are not asked again.
        pool.close()
    if trouble.number and not hit:
        return None, ""
    wrong = wrongly_told(trouble, outcome, took)
    if not wrong and (left := left_behind(address)):
        wrong = f"it left {left[:3]}"
    after = pool.run(CASES[0], RIGHT)
    if not isinstance(after, Assembly) or after.misfits:
        wrong = wrong or f"the next case came out as {after}"
    return took, wrong


def strike(trouble: Trouble, torchrun: int, hit: list[int]) -> None:
    """As soon as it is there: a rank is a child of torchrun before it has connected."""
    until = time.monotonic() + MARGIN
    while not hit and time.monotonic() < until:
        # Whoever is gone meanwhile is not struck.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
            pids = [torchrun, *map(int, children)]
            if trouble.target < len(pids):
                os.kill(pids[trouble.target], signal.Signals[trouble.number])
                hit.append(pids[trouble.target])
        time.sleep(0.01)


def wrongly_told(trouble: Trouble, outcome: object, took: float) -> str:
    if not isinstance(outcome, Fault):
        return f"nobody noticed: {type(outcome).__name__}"
    if outcome.kind not in trouble.kinds:
        return f"told as {outcome.kind}: {outcome.summary}"
    if trouble.rank is not None and outcome.rank not in (trouble.rank, None):
        return f"rank {outcome.rank} is blamed: {outcome.summary}"
    most = (START_DEADLINE if trouble.moment == STARTING else DEADLINE) + MARGIN
    return f"told after {took:.1f} s" if took > most else ""


if __name__ == "__main__":
    main()
