"""Processes of this host that claim to be on several, with the variables that a launcher sets."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from harness.ranks.pool import RankPool
from harness.worlds.other_hosts import OtherHosts
from harness.worlds.world import World
from properties.helpers.commands import HARNESS, run_in_background


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def told(rank: int, size: int, port: int, group: int | None = None) -> dict[str, Any]:
    """Return the variables that a launcher sets; without `group` each rank has its own host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GROUP_RANK": str(rank if group is None else group),
    }


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@contextmanager
def pool_with_another_host(
    deadline: float = 600.0,
) -> Iterator[tuple[RankPool, subprocess.Popen[str], OtherHosts]]:
    """Open a pool of two ranks; this process starts one, and the other host the second."""
    port = free_port()
    with run_in_background(*HARNESS, "check", **told(1, 2, port)) as other:
        nodes = OtherHosts(World(0, 2, "127.0.0.1", port))
        with closing(nodes), RankPool(2, nodes=nodes, deadline=deadline) as pool:
            yield pool, other, nodes
