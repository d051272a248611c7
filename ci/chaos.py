#!/usr/bin/env -S .venv/bin/python
"""Faults at random, one after the other: each must be told as what it is, and be over.

Run it as `.venv/bin/python ci/chaos.py SEED MINUTES`. Of each fault it asks: is its kind right,
and the rank that is blamed; was it told in time; is the next case right; is anything left. It
prints a table, and fails at the first fault of which something is not as it should be. With
`--keep` the table goes into docs/faults.md.
"""

import contextlib
import os
import random
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from subprocess import Popen

from project import ROOT

from harness.campaign.markdown import marked, table
from harness.candidates import locate
from harness.case import parse
from harness.ranks.pool import START_DEADLINE, RankPool
from harness.ranks.process_exit import exit_handle
from harness.trace import Assembly, Fault, Kind
from properties.helpers.alive import address_of, left_behind
from properties.helpers.another_host import children, pool_with_another_host

PAGE = ROOT / "docs" / "faults.md"
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
# Ranks that are kept from coming up are waited for no longer than that.
DEADLINE, KEPT_FROM_STARTING, MARGIN = 3.0, 20.0, 10.0
# Who is struck, by its place among the pool's processes; by what; and when.
TARGETS = {"the supervisor": 0, "rank 0": 1, "rank 1": 2}
DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS")
MOMENTS = STARTING, IDLE, IN_A_CASE, CLOSING = (
    "while it starts",
    "between cases",
    "in a case",
    "while it ends",
)
# Seconds after which the blow falls; SOON after it, idle ranks get a case, or are told to end.
SOON = 0.1
DELAYS = {STARTING: (0.0, 0.4), IDLE: (0.0, 0.0), IN_A_CASE: (0.2, 0.6), CLOSING: (0.08, 0.11)}
# What planted candidates do to rank 1, and what may be told of it.
PLANTED = {
    "SLEEPS": {Kind.HUNG},
    "SLEEPS_ELSEWHERE": {Kind.HUNG},
    "SPINS": {Kind.HUNG},
    "DEAF": {Kind.HUNG},
    "LEAVES_A_DAEMON": {Kind.HUNG},
    "LEAVES_A_DAEMON_AND_DIES": {Kind.DIED},
    "DIES": {Kind.DIED},
    "VANISHES": {Kind.DIED},
    "CLOSES_SOCKETS": {Kind.DIED},
    "LEAVES_CHILDREN": {Kind.DIED},
    "LEAVES_A_TALKER": {Kind.DIED},
    "BAD_TOKENS": {Kind.RAISED},
    "LEAVES": {Kind.RAISED},
    "FLOODS": {Kind.RAISED},
    "FILLS_THE_DISK": {Kind.RAISED},
    "EXHAUSTS_MEMORY": {Kind.RAISED},
    "EXHAUSTS_DESCRIPTORS": {Kind.RAISED},
    "LEAVES_WITH_A_LONG_WORD": {Kind.RAISED},
    "TALKS_GARBAGE": {Kind.PROTOCOL},
}
# Where ranks are of two hosts, as under a launcher, rank 1 is there.
ELSEWHERE = ", on another host"
# Where several ranks wait for each other, or none has connected, nobody can say for whom.
BLAME_NOBODY = (Kind.START, Kind.HUNG, Kind.LAUNCHER)


@dataclass(frozen=True)
class Incident:
    """A fault to come, and what may be told of it."""

    name: str
    candidate: str
    kinds: frozenset[Kind]
    # Who is to blame, if anybody.
    rank: int | None
    moment: str = IN_A_CASE
    # Of a signal: which, and to whom.
    number: str = ""
    target: int = 0
    # Whether rank 1 is on another host.
    elsewhere: bool = False


def incidents() -> Iterator[Incident]:
    """Every kind there is."""
    for name, kinds in PLANTED.items():
        # From another host all that its child says comes first, and that may take too long.
        for elsewhere in (False,) if name == "LEAVES_A_TALKER" else (False, True):
            called = f"{name}{ELSEWHERE * elsewhere}"
            incident = Incident(called, f"{FAULTY}:{name}", frozenset(kinds), 1)
            yield replace(incident, elsewhere=elsewhere)
    for number, moment in product((*DEADLY, "SIGSTOP"), (IDLE, IN_A_CASE)):
        told = frozenset({Kind.HUNG if number == "SIGSTOP" else Kind.DIED})
        candidate = f"{FAULTY}:SLEEPS_BOTH" if moment == IN_A_CASE else RIGHT
        name = f"{number} to rank 1{ELSEWHERE}"
        yield Incident(name, candidate, told, 1, moment, number, 1, elsewhere=True)
    for (who, target), number, moment in product(TARGETS.items(), (*DEADLY, "SIGSTOP"), MOMENTS):
        if number == "SIGSTOP" and who == "the supervisor":
            # Ranks go on without it.
            continue
        kinds = {Kind.LAUNCHER if who == "the supervisor" else Kind.DIED}
        if number == "SIGSTOP":
            kinds = {Kind.HUNG}
        if moment == STARTING:
            # It may be up by the time that it is struck.
            kinds |= {Kind.START}
        candidate = f"{FAULTY}:SLEEPS_BOTH" if moment == IN_A_CASE else RIGHT
        rank = target - 1 if target else None
        name = f"{number} to {who}"
        yield Incident(name, candidate, frozenset(kinds), rank, moment, number, target)


def main() -> None:
    seed, minutes = int(sys.argv[1]), float(sys.argv[2])
    draw, every = random.Random(seed), list(incidents())  # noqa: S311 - nothing to hide
    # Each once, and then any.
    coming = draw.sample(every, len(every))
    until = time.monotonic() + 60 * minutes
    seconds: defaultdict[str, defaultdict[str, list[float]]]
    seconds = defaultdict(lambda: defaultdict(list))
    count = 0
    with RankPool(2, deadline=DEADLINE) as pool, pool_with_another_host(DEADLINE) as elsewhere:
        while time.monotonic() < until:
            incident = coming.pop() if coming else draw.choice(every)
            ranks, host = elsewhere[:2] if incident.elsewhere else (pool, None)
            took, wrong = suffered(incident, ranks, draw, host)
            if took is None:
                continue
            count += 1
            seconds[incident.name][incident.moment].append(took)
            if wrong:
                sys.exit(
                    f"chaos {seed}, fault {count}, {incident.name} {incident.moment}: {wrong}"
                )
    rows = (
        (name, *(f"{len(at[m])} x {median(at[m]):.1f}" if at[m] else "" for m in MOMENTS))
        for name, at in sorted(seconds.items())
    )
    seen = sum(len(at) for at in seconds.values())
    said = (
        f"{count} faults in a row from seed {seed}, of {seen} kinds, and no miss. How often each, "
        "and the median of the seconds until it was told:\n\n"
    ) + table(("fault", *MOMENTS), rows)
    print(said)
    if "--keep" in sys.argv:
        PAGE.write_text(marked(PAGE.read_text(), "chaos", said))


def suffered(
    incident: Incident, pool: RankPool, draw: random.Random, host: Popen[str] | None = None
) -> tuple[float | None, str]:
    """Seconds until it was told, or nothing where nobody was struck; and what went wrong.

    Where rank 1 is on another `host`, that is the process that keeps it.
    """
    if incident.moment == STARTING:
        pool.close()
        pool.deadlines.start = KEPT_FROM_STARTING
        pool.start()
    elif fault := pool.wait_until_ready():
        return 0.0, f"no ranks: {fault.summary}"
    supervisor = children(host.pid)[0] if host else pool.pids()[0]
    address = address_of(supervisor)
    hit: list[float] = []
    struck: list[int] = []
    delay = draw.uniform(*DELAYS[incident.moment])
    blow = threading.Timer(delay, strike, (incident, supervisor, hit, struck))
    if incident.number:
        blow.start()
    if incident.moment in (IDLE, CLOSING):
        await_blow(incident, blow, struck)
    began = time.monotonic()
    if incident.moment == CLOSING:
        pool.close()
        wrong = ""
    else:
        outcome = pool.run(draw.choice(CASES), locate(incident.candidate))
        wrong = wrongly_told(incident, outcome)
    took = time.monotonic() - began
    if incident.number:
        blow.join()
        if not hit or (incident.moment in (STARTING, CLOSING) and hit[0] > began + took):
            # It came up, and was done, before, or had ended its ranks.
            pool.close()
            return None, ""
        if incident.moment == STARTING and isinstance(outcome, Assembly):
            # Or it had answered before: then the next case tells of it.
            wrong = wrongly_told(incident, pool.run(CASES[0], locate(incident.candidate)))
            wrong = wrong or left_wrong(address, pool)
            pool.close()
            return (took, wrong) if wrong else (None, "")
    most = (KEPT_FROM_STARTING if incident.moment == STARTING else DEADLINE) + MARGIN
    if took > most:
        wrong = wrong or f"told after {took:.1f} s"
    return took, wrong or left_wrong(address, pool)


def left_wrong(address: str, pool: RankPool) -> str:
    """What is not as it should be once a fault is told."""
    # Ranks that did not come up once are not asked again.
    if pool.deadlines.start == KEPT_FROM_STARTING:
        pool.close()
    # From here on nobody keeps them, and a busy machine may take its time.
    pool.deadlines.start = START_DEADLINE
    if left := left_behind(address):
        return f"it left {left[:3]}"
    after = pool.run(CASES[0], locate(RIGHT))
    if not isinstance(after, Assembly) or after.misfits:
        return f"the next case came out as {after}"
    return ""


def await_blow(incident: Incident, blow: threading.Timer, struck: list[int]) -> None:
    """Wait until it falls, or if ranks are idle until it has taken effect.

    On a busy machine a process may outlive a signal for a while.
    """
    if incident.moment == CLOSING or not incident.number:
        time.sleep(SOON)
        return
    blow.join()
    for pid in struck:
        if incident.number == "SIGSTOP":
            await_stop(pid)
            continue
        # A zombie may have threads that still run: only its handle knows when all are gone.
        with contextlib.suppress(ProcessLookupError):
            handle = exit_handle(pid)
            select.select([handle], [], [], MARGIN)
            os.close(handle)


def await_stop(pid: int) -> None:
    """Wait until a process is stopped."""
    until = time.monotonic() + MARGIN
    while time.monotonic() < until:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return
        time.sleep(0.01)


def strike(incident: Incident, supervisor: int, hit: list[float], struck: list[int]) -> None:
    """As soon as it is there: a rank is a child of its supervisor before it has connected."""
    until = time.monotonic() + MARGIN
    while not hit and time.monotonic() < until:
        # Whoever is gone meanwhile is not struck.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
            pids = [supervisor, *map(int, children)]
            if incident.target < len(pids):
                os.kill(pids[incident.target], signal.Signals[incident.number])
                struck.append(pids[incident.target])
                hit.append(time.monotonic())
        time.sleep(0.01)


def wrongly_told(incident: Incident, outcome: object) -> str:
    if not isinstance(outcome, Fault):
        return f"nobody noticed: {type(outcome).__name__}"
    if outcome.kind not in incident.kinds:
        return f"told as {outcome.kind}: {outcome.summary}"
    unnamed = outcome.rank is None and outcome.kind in BLAME_NOBODY
    if incident.rank is not None and outcome.rank != incident.rank and not unnamed:
        return f"rank {outcome.rank} is blamed: {outcome.summary}"
    return ""


if __name__ == "__main__":
    main()
