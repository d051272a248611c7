"""The pools that a command was asked for: one, several here, or some on the hosts of a cluster."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.commands.options import Pools
from harness.commands.values import UsageError
from harness.engine.engine import Done, Engine, Job, Lost, ThisProcess
from harness.engine.no_ranks import NoRanks
from harness.engine.processes import Open, Processes

if TYPE_CHECKING:
    from harness.engine.ray_cluster import RayCluster

MOST_POOLS = 64


def pools_for(options: Pools, ranks: int, *, most: int, worth: int, of: str) -> int:
    """How many pools `--pools` asks for; `auto` has a core or a device for each rank.

    Elsewhere that is known only there. There are at most so many, as `of` says in words, and it is
    worth to start so many.
    """
    if options.pools != "auto":
        if not options.pools.isdecimal() or not 0 < int(options.pools) <= most:
            raise UsageError(f"--pools={options.pools}: use auto, or a number from 1 to {of}")
        return int(options.pools)
    if options.on != "here":
        return 0
    from harness.ranks.device import at_hand
    from harness.ranks.placement import PRETEND

    kind, devices = at_hand()
    cores = "cpu" in (kind, options.device) or options.device == PRETEND
    there = len(os.sched_getaffinity(0)) if cores else devices
    return max(1, min(there // ranks, worth))


@contextmanager
def open_engine(
    opens: Open,
    asked: tuple[Any, ...],
    options: Pools,
    ranks: int,
    read: Callable[[Any], Done],
    jobs: int,
) -> Iterator[Engine[str, Done]]:
    """One pool, several on this host, or wherever there is room; no more than there are jobs."""
    asked_for = pools_for(options, ranks, most=MOST_POOLS, worth=jobs, of=str(MOST_POOLS))
    pools = min(asked_for, jobs)
    try:
        if options.on != "here":
            cluster: RayCluster[str, Done] = open_cluster(
                opens, lambda: asked, options, ranks, read
            )
            with cluster:
                yield cluster
        elif pools > 1:
            with Processes[str, Done](opens, asked, pools, read) as processes:
                yield processes
        else:
            with opens(*asked) as work:
                yield ThisProcess(lambda job: read(work(job)))
    except Lost as error:
        raise NoRanks(f"harness: {error}", str(error)) from None


def open_cluster(
    opens: Open,
    asked: Callable[[], tuple[Any, ...]],
    options: Pools,
    ranks: int,
    read: Callable[[Any], Done],
) -> "RayCluster[Job, Done]":
    """Pools wherever there is room for them."""
    try:
        from harness.engine.ray_cluster import RayCluster
    except ImportError:
        raise UsageError(
            "--on=ray: Ray is not installed here; pip install 'ulysses-harness[ray]'"
        ) from None
    return RayCluster(
        opens,
        asked,
        ranks,
        read,
        pools=options.pools,
        device=options.device,
        quiet=options.json,
    )
