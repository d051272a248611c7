"""Open the engine that --pools and --on ask for: one or several pools here, or on a cluster."""

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
    """Return the number of pools that --pools asks for; 0 with `auto` on a cluster.

    A number may be up to `most`, which the message of a refusal calls `of`. `auto` gives each rank
    a core or a device of its own, in up to `worth` pools; a cluster counts its devices itself.
    """
    if options.pools != "auto":
        if not options.pools.isdecimal() or not 0 < int(options.pools) <= most:
            raise UsageError(f"--pools={options.pools}: use auto, or a number from 1 to {of}")
        return int(options.pools)
    if options.on != "here":
        return 0
    from harness.rank_program.placement import PRETEND
    from harness.ranks.device import find_accelerator

    kind, devices = find_accelerator()
    uses_cores = "cpu" in (kind, options.device) or options.device == PRETEND
    available = len(os.sched_getaffinity(0)) if uses_cores else devices
    return max(1, min(available // ranks, worth))


@contextmanager
def open_engine(
    opens: Open,
    asked: tuple[Any, ...],
    options: Pools,
    ranks: int,
    read: Callable[[Any], Done],
    jobs: int,
) -> Iterator[Engine[str, Done]]:
    """Open an engine for so many jobs: a cluster, several processes, or this process.

    `opens(*asked)` opens ranks and yields the function that does a job; `read` reads its record.
    Raise `NoRanks` if every place that got a job was lost.
    """
    pools = pools_for(options, ranks, most=MOST_POOLS, worth=jobs, of=str(MOST_POOLS))
    pools = min(pools, jobs)
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
    """Return an engine on a Ray cluster; raise `UsageError` if Ray is not installed.

    `asked` is called for each pool that starts, since the seconds that are left change meanwhile.
    """
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
