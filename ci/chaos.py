#!/usr/bin/env -S .venv/bin/python
"""Cause random faults in rank pools, one after the other, and check how each is reported.

Run it as `.venv/bin/python ci/chaos.py SEED MINUTES`. After each fault it checks that its kind and
the blamed rank are right, that it was reported in time, that the next case is judged right, and
that no process or file is left behind. It stops with an error at the first fault that fails a
check; otherwise it prints a table, and with `--keep` writes it into docs/faults.md.
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
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from subprocess import Popen

from kills import KILLS, kills
from project import ROOT

from harness.campaign.markdown import replace_marked, table
from harness.candidates import locate
from harness.case import parse
from harness.processes.process_exit import exit_handle
from harness.ranks.pool import START_DEADLINE, RankPool
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
# Seconds for a case, for the start of ranks that a signal keeps from starting, and for a report
# beyond these.
DEADLINE, FAILED_START, MARGIN = 3.0, 20.0, 10.0
# Which process gets a signal, by its position among the pool's processes; which signal; and when.
TARGETS = {"the supervisor": 0, "rank 0": 1, "rank 1": 2}
DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS")
MOMENTS = STARTING, IDLE, IN_A_CASE, CLOSING = (
    "while it starts",
    "between cases",
    "in a case",
    "while it ends",
)
# Seconds until idle ranks get a case or are closed, and the range of seconds until the signal.
SOON = 0.1
DELAYS = {STARTING: (0.0, 0.4), IDLE: (0.0, 0.0), IN_A_CASE: (0.2, 0.6), CLOSING: (0.08, 0.11)}
# Planted candidates, each of which does something to rank 1, and the kinds that may be reported.
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
# With ranks on two hosts, as under a launcher, rank 1 is on the other one.
ELSEWHERE = ", on another host"
# Kinds that may blame no rank: several ranks wait for each other, or none has connected.
MAY_BLAME_NO_RANK = (Kind.START, Kind.HUNG, Kind.LAUNCHER)


@dataclass(frozen=True)
class Incident:
    """A fault to cause, and how it may be reported."""

    name: str
    candidate: str
    kinds: frozenset[Kind]
    # The rank to blame, if the fault is that of a rank.
    rank: int | None
    moment: str = IN_A_CASE
    # The signal to send, if any, and the process that gets it, as TARGETS has it.
    signal_name: str = ""
    target: int = 0
    # Whether rank 1 is on another host.
    elsewhere: bool = False


def incidents() -> Iterator[Incident]:
    """Yield every incident: planted candidates, and signals to each process at each moment."""
    for name, kinds in PLANTED.items():
        # On another host, the output of its child is forwarded first, which may take too long.
        for elsewhere in (False,) if name == "LEAVES_A_TALKER" else (False, True):
            title = f"{name}{ELSEWHERE * elsewhere}"
            incident = Incident(title, f"{FAULTY}:{name}", frozenset(kinds), 1)
            yield replace(incident, elsewhere=elsewhere)
    for signal_name, moment in product((*DEADLY, "SIGSTOP"), (IDLE, IN_A_CASE)):
        kind = frozenset({Kind.HUNG if signal_name == "SIGSTOP" else Kind.DIED})
        candidate = f"{FAULTY}:SLEEPS_BOTH" if moment == IN_A_CASE else RIGHT
        title = f"{signal_name} to rank 1{ELSEWHERE}"
        yield Incident(title, candidate, kind, 1, moment, signal_name, 1, elsewhere=True)
    signals = (*DEADLY, "SIGSTOP")
    for (process, target), signal_name, moment in product(TARGETS.items(), signals, MOMENTS):
        if signal_name == "SIGSTOP" and process == "the supervisor":
            # It is no fault: the ranks work without the supervisor.
            continue
        kinds = {Kind.LAUNCHER if process == "the supervisor" else Kind.DIED}
        if signal_name == "SIGSTOP":
            kinds = {Kind.HUNG}
        if moment == STARTING:
            # The signal may come before or after the ranks are ready.
            kinds |= {Kind.START}
        candidate = f"{FAULTY}:SLEEPS_BOTH" if moment == IN_A_CASE else RIGHT
        rank = target - 1 if target else None
        title = f"{signal_name} to {process}"
        yield Incident(title, candidate, frozenset(kinds), rank, moment, signal_name, target)


def main() -> None:
    seed, minutes = int(sys.argv[1]), float(sys.argv[2])
    draw = random.Random(seed)  # noqa: S311 - no secret depends on it
    every: list[Incident | str] = [*incidents(), *KILLS]
    # Each fault once, and then random ones.
    coming = draw.sample(every, len(every))
    until = time.monotonic() + 60 * minutes
    seconds: defaultdict[str, defaultdict[str, list[float]]]
    seconds = defaultdict(lambda: defaultdict(list))
    count = 0
    with ExitStack() as stack:
        pool = stack.enter_context(RankPool(2, deadline=DEADLINE))
        elsewhere = stack.enter_context(pool_with_another_host(DEADLINE))
        killing = kills(stack)
        while time.monotonic() < until:
            incident = coming.pop() if coming else draw.choice(every)
            if isinstance(incident, str):
                name, moment = incident, IN_A_CASE
                took, error = killing[incident](draw)
            else:
                name, moment = incident.name, incident.moment
                ranks, host = elsewhere[:2] if incident.elsewhere else (pool, None)
                took, error = cause(incident, ranks, draw, host)
            if took is None:
                continue
            count += 1
            seconds[name][moment].append(took)
            if error:
                sys.exit(f"chaos {seed}, fault {count}, {name} {moment}: {error}")
    rows = (
        (name, *(f"{len(at[m])} x {median(at[m]):.1f}" if at[m] else "" for m in MOMENTS))
        for name, at in sorted(seconds.items())
    )
    kinds = sum(len(at) for at in seconds.values())
    text = (
        f"{count} faults in a row from seed {seed}, of {kinds} kinds, and no miss. "
        "How often each, and the median of the seconds until it was reported:\n\n"
    ) + table(("fault", *MOMENTS), rows)
    print(text)
    if "--keep" in sys.argv:
        PAGE.write_text(replace_marked(PAGE.read_text(), "chaos", text))


def cause(
    incident: Incident, pool: RankPool, draw: random.Random, host: Popen[str] | None = None
) -> tuple[float | None, str]:
    """Cause a fault; return the seconds until it was reported, and what was wrong with that.

    The seconds are None if the signal came too early or too late for the moment of the incident.
    If rank 1 is on another host, `host` is the process that keeps the ranks there.
    """
    if incident.moment == STARTING:
        pool.close()
        pool.deadlines.start = FAILED_START
        pool.start()
    elif fault := pool.wait_until_ready():
        return 0.0, f"no ranks: {fault.summary}"
    supervisor = children(host.pid)[0] if host else pool.pids()[0]
    address = address_of(supervisor)
    sent: list[float] = []
    targets: list[int] = []
    delay = draw.uniform(*DELAYS[incident.moment])
    timer = threading.Timer(delay, send_signal, (incident, supervisor, sent, targets))
    if incident.signal_name:
        timer.start()
    if incident.moment in (IDLE, CLOSING):
        await_effect(incident, timer, targets)
    started = time.monotonic()
    if incident.moment == CLOSING:
        pool.close()
        error = ""
    else:
        outcome = pool.run(draw.choice(CASES), locate(incident.candidate))
        error = check_report(incident, outcome)
    took = time.monotonic() - started
    if incident.signal_name:
        timer.join()
        if not sent or (incident.moment in (STARTING, CLOSING) and sent[0] > started + took):
            # The ranks had done the case, or had ended, before the signal came.
            pool.close()
            return None, ""
        if incident.moment == STARTING and isinstance(outcome, Assembly):
            # The target had already answered, so that the next case must report the fault.
            error = check_report(incident, pool.run(CASES[0], locate(incident.candidate)))
            error = error or check_aftermath(address, pool)
            pool.close()
            return (took, error) if error else (None, "")
    most = (FAILED_START if incident.moment == STARTING else DEADLINE) + MARGIN
    if took > most:
        error = error or f"reported after {took:.1f} s"
    return took, error or check_aftermath(address, pool)


def check_aftermath(address: str, pool: RankPool) -> str:
    """Return what is wrong after a fault: processes or files that are left, or the next case."""
    # The pool does not try again to start ranks that failed to start.
    if pool.deadlines.start == FAILED_START:
        pool.close()
    # No signal prevents the next start, and a busy machine may need long for it.
    pool.deadlines.start = START_DEADLINE
    if left := left_behind(address):
        return f"it left {left[:3]}"
    after = pool.run(CASES[0], locate(RIGHT))
    if not isinstance(after, Assembly) or after.misfits:
        return f"the next case came out as {after}"
    return ""


def await_effect(incident: Incident, timer: threading.Timer, targets: list[int]) -> None:
    """Wait a moment; if ranks are idle, wait until the signal has taken effect.

    On a busy machine a process may outlive a signal for a while.
    """
    if incident.moment == CLOSING or not incident.signal_name:
        time.sleep(SOON)
        return
    timer.join()
    for pid in targets:
        if incident.signal_name == "SIGSTOP":
            await_stop(pid)
            continue
        # Threads of a zombie may still run; its handle becomes readable when all have ended.
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


def send_signal(
    incident: Incident, supervisor: int, sent: list[float], targets: list[int]
) -> None:
    """Send the signal as soon as its target exists, which may be before a rank has connected."""
    until = time.monotonic() + MARGIN
    while not sent and time.monotonic() < until:
        # The target may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
            pids = [supervisor, *map(int, children)]
            if incident.target < len(pids):
                os.kill(pids[incident.target], signal.Signals[incident.signal_name])
                targets.append(pids[incident.target])
                sent.append(time.monotonic())
        time.sleep(0.01)


def check_report(incident: Incident, outcome: object) -> str:
    """Return what is wrong with the outcome of a case in which an incident happened."""
    if not isinstance(outcome, Fault):
        return f"not noticed: {type(outcome).__name__}"
    if outcome.kind not in incident.kinds:
        return f"reported as {outcome.kind}: {outcome.summary}"
    blames_none = outcome.rank is None and outcome.kind in MAY_BLAME_NO_RANK
    if incident.rank is not None and outcome.rank != incident.rank and not blames_none:
        return f"rank {outcome.rank} is blamed: {outcome.summary}"
    return ""


if __name__ == "__main__":
    main()
