"""Kill a whole pool in the middle of a campaign, or a host in a case, for `ci/chaos.py`."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from harness.candidates import locate
from harness.case import parse
from harness.supervision import supervisor_process
from harness.trace import Fault
from harness.worlds import channel
from properties.helpers.alive import address_of, left_behind
from properties.helpers.another_host import children, pool_with_another_host
from properties.helpers.commands import HARNESS, campaign_of, run_in_background, run_to_end
from properties.helpers.places import PLANTED, ROOT
from properties.helpers.wait import eventually

# What follows a kill: the seconds until it was dealt with, or None if it came too late, and what
# was wrong with that.
Outcome = tuple[float | None, str]
CAMPAIGN = (
    *(*HARNESS, "check", "--candidate", "native-local", "--cases", "80", "--ranks", "2"),
    *("--sp", "2", "--dp", "1", "--dtype", "fp64", "--set", "layers=1", "--json"),
)
CASE = parse("case/1 rows=3:111,4:1011 sp=2")
TWO_POOLS = ("--pools", "2")
KILLS = POOL, ACTOR, HOST = (
    "SIGKILL to a pool of --pools 2",
    "SIGKILL to an actor on Ray",
    "SIGKILL to another host",
)
# The range of seconds between the start of the first ranks and the kill, and the seconds within
# which a campaign of a few seconds must end.
DELAY, MOST = (0.0, 4.0), 120.0


def kills(stack: ExitStack) -> dict[str, Callable[[random.Random], Outcome]]:
    """Return what each of KILLS does; what it starts for several of them ends with the stack."""

    @cache
    def cluster() -> tuple[int, str]:
        process = stack.enter_context(
            subprocess.Popen(
                (sys.executable, "-m", "properties.helpers.ray_cluster"),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        assert process.stdin
        assert process.stdout
        stack.callback(process.stdin.close)
        return process.pid, process.stdout.readline().strip()

    def kill_actor(draw: random.Random) -> Outcome:
        pid, address = cluster()
        return kill_pool(draw, pid, "--on", "ray", RAY_ADDRESS=address)

    return {POOL: kill_pool, ACTOR: kill_actor, HOST: kill_host}


def kill_pool(
    draw: random.Random, root: int | None = None, *words: str, **variables: Any
) -> Outcome:
    """Kill one of two pools of a campaign, below `root` or else below the command itself."""
    delay = draw.uniform(*DELAY)
    with run_in_background(*CAMPAIGN, *TWO_POOLS, *words, **variables) as run:
        found = eventually(lambda: bool(pools_below(root or run.pid)), MOST)
        if not found:
            return 0.0, "no pool was started"
        time.sleep(delay)
        pools = pools_below(root or run.pid)
        if not pools or run.poll() is not None:
            return None, ""
        pid, supervisor = draw.choice(pools)
        address = address_of(supervisor)
        started = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        try:
            output, log = run.communicate(timeout=MOST)
        except subprocess.TimeoutExpired:
            return MOST, "the campaign did not end"
    took = time.monotonic() - started
    if run.returncode:
        return took, f"exit status {run.returncode}: {log[-500:]}"
    if campaign_of(output) != document_of_one_pool():
        return took, "the document is not that of one pool"
    left = left_behind(address)
    return took, f"it left {left[:3]}" if left else ""


@cache
def document_of_one_pool() -> Any:
    return campaign_of(run_to_end(*CAMPAIGN).stdout)


def pools_below(root: int) -> list[tuple[int, int]]:
    """Return each process below `root` that has a pool, with the supervisor of its ranks.

    Ranks are forks of their supervisor, with the same command.
    """
    return [
        (parent, pid)
        for parent, pid in descendants(root)
        if is_supervisor(pid) and not is_supervisor(parent)
    ]


def descendants(root: int) -> Iterator[tuple[int, int]]:
    """Yield the processes below another, each after its parent."""
    # A process may end while its children are listed.
    with contextlib.suppress(OSError):
        for pid in children(root):
            yield root, pid
            yield from descendants(pid)


def is_supervisor(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return supervisor_process.__name__.encode() in command


def kill_host(draw: random.Random) -> Outcome:
    """Kill the process that keeps the ranks of another host, in the middle of a case."""
    # It is still longer than a living host is silent.
    channel.SILENCE = 2 * channel.BEAT
    with pool_with_another_host() as (pool, other, _):
        if fault := pool.wait_until_ready():
            return 0.0, f"no ranks: {fault.summary}"
        address = address_of(children(other.pid)[0])
        pool.submit(CASE, locate(f"{PLANTED / 'faulty.py'}:SLEEPS_BOTH"))
        time.sleep(draw.uniform(0.2, 0.6))
        started = time.monotonic()
        other.kill()
        outcome = pool.collect()
        took = time.monotonic() - started
    if not isinstance(outcome, Fault) or "node 1 is gone" not in outcome.summary:
        return took, f"reported as {outcome}"
    left = left_behind(address)
    return took, f"it left {left[:3]}" if left else ""
