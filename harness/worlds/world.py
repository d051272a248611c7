"""The processes that a launcher such as torchrun, srun or accelerate started on several hosts.

Together they make one pool. Rank 0 becomes the controller. The lowest rank of every other host
keeps the ranks of that host; all other processes have nothing to do and end. Controller and hosts
talk through the store of torch.distributed whose address the launcher gives them.
"""

import os
import socket
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.processes.descendants import ADDRESS
from harness.untrusted import BadInput

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# The variables that every launcher sets.
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How long the last process may take to start.
PATIENCE = timedelta(seconds=300)
# The variables by which torchrun distinguishes one attempt from the next.
ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
BOOT = Path("/proc/sys/kernel/random/boot_id")


class IncompleteWorld(BadInput):
    """Some processes of the launcher are missing, or hosts have different numbers of them."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among those of its launcher, and the address of their store."""

    rank: int
    size: int
    address: str
    port: int

    @classmethod
    def here(cls) -> Self | None:
        """Return the world of this process; None if no launcher started other processes too."""
        values = [os.environ.get(name, "") for name in NAMES]
        if ADDRESS in os.environ or not all(values):
            return None
        rank, size, address, port = values
        if not (rank.isdecimal() and size.isdecimal() and port.isdecimal()):
            raise IncompleteWorld(
                f"RANK={rank} WORLD_SIZE={size} MASTER_PORT={port}: use whole numbers, or unset "
                "them to run without a launcher"
            )
        return cls(int(rank), int(size), address, int(port)) if int(size) > 1 else None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def store_prefix(self) -> str:
        """The prefix of the harness's keys in the store; a launcher's restart gives another."""
        return "/".join(("harness", *(os.environ.get(name, "") for name in ATTEMPT)))

    def connect(self) -> "Store":
        """Open a connection to the store; a thread that may block there needs one of its own."""
        from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]

        try:
            store = TCPStore(self.address, self.port, is_master=False, timeout=PATIENCE)
        except DistError as error:
            where = f"MASTER_ADDR={self.address} MASTER_PORT={self.port}"
            raise IncompleteWorld(f"{where}: nothing answers there: {error}") from None
        return PrefixStore(self.store_prefix, store)

    def serve_store(self) -> "Store | None":
        """Start the store and return it, unless the launcher has one; it ends with its object."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        if not self.is_first or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return None
        # Listen at this address only: torch would listen at every address of the host.
        listener = socket.create_server((self.address, self.port)).detach()
        return TCPStore(
            self.address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener,
        )

    def hosts(self, store: "Store") -> list[list[int]]:
        """Wait for all processes; return the ranks of each host."""
        from torch.distributed import DistError

        on_host = defaultdict[bytes, list[int]](list)
        store.set(f"host/{self.rank}", _host_id())
        for rank in range(self.size):
            try:
                on_host[store.get(f"host/{rank}")].append(rank)
            except DistError:
                raise IncompleteWorld(
                    f"WORLD_SIZE={self.size}: process {rank} did not come within "
                    f"{PATIENCE.total_seconds():g} s; unset RANK to run without a launcher"
                ) from None
        hosts = sorted(on_host.values())
        counts = {len(ranks) for ranks in hosts}
        if len(counts) > 1:
            raise IncompleteWorld(
                f"WORLD_SIZE={self.size}: hosts have {sorted(counts)} processes; start as many on "
                "each"
            )
        return hosts


def _host_id() -> str:
    # One host may have several groups of torchrun, each with its part of the devices.
    return " ".join((socket.gethostname(), BOOT.read_text(), os.environ.get("GROUP_RANK", "")))
