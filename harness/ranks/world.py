"""Processes that a launcher has started on several hosts, as torchrun, srun or accelerate do.

Together they are the ranks of one pool. The first of all is the controller; on every other host
the first one there keeps the ranks of that host; the others have nothing to do, and end. What they
say to each other goes through the store of torch.distributed that the launcher has for them.
"""

import os
import socket
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.ranks.descendants import ADDRESS
from harness.untrusted import BadInput

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# What all launchers tell the processes that they start.
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How long the last of them may take to come.
PATIENCE = timedelta(seconds=300)
# What torchrun tells of the attempt.
ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
BOOT = Path("/proc/sys/kernel/random/boot_id")


class NotTogether(BadInput):
    """They are not all there, or not as many on each host."""


@dataclass(frozen=True, slots=True)
class World:
    """This process, and where it meets the others."""

    rank: int
    size: int
    address: str
    port: int

    @classmethod
    def here(cls) -> Self | None:
        """Nothing where no launcher has started others beside us."""
        told = [os.environ.get(name, "") for name in NAMES]
        if ADDRESS in os.environ or not all(told):
            return None
        rank, size, address, port = told
        if not (rank.isdecimal() and size.isdecimal() and port.isdecimal()):
            raise NotTogether(
                f"RANK={rank} WORLD_SIZE={size} MASTER_PORT={port}: use whole numbers, or unset "
                "them to run without a launcher"
            )
        return cls(int(rank), int(size), address, int(port)) if int(size) > 1 else None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def place(self) -> str:
        """Where in the store is all that is ours: elsewhere each time that a launcher restarts."""
        told = (os.environ.get(name, "") for name in ATTEMPT)
        return "/".join(("harness", *told))

    def connect(self) -> "Store":
        """To the store, anew for everybody who may have to wait there."""
        from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]

        try:
            store = TCPStore(self.address, self.port, is_master=False, timeout=PATIENCE)
        except DistError as error:
            where = f"MASTER_ADDR={self.address} MASTER_PORT={self.port}"
            raise NotTogether(f"{where}: nothing answers there: {error}") from None
        return PrefixStore(self.place, store)

    def serve_store(self) -> "Store | None":
        """For as long as it is held, where the launcher has none itself."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        if not self.is_first or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return None
        # At this address alone: torch would listen on all that the host has.
        listener = socket.create_server((self.address, self.port)).detach()
        return TCPStore(
            self.address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener,
        )

    def hosts(self, store: "Store") -> list[list[int]]:
        """The ranks that the launcher has on each host."""
        from torch.distributed import DistError

        on_host = defaultdict[bytes, list[int]](list)
        store.set(f"host/{self.rank}", _this_host())
        for rank in range(self.size):
            try:
                on_host[store.get(f"host/{rank}")].append(rank)
            except DistError:
                raise NotTogether(
                    f"WORLD_SIZE={self.size}: process {rank} did not come within "
                    f"{PATIENCE.total_seconds():g} s; unset RANK to run without a launcher"
                ) from None
        hosts = sorted(on_host.values())
        counts = {len(ranks) for ranks in hosts}
        if len(counts) > 1:
            raise NotTogether(
                f"WORLD_SIZE={self.size}: hosts have {sorted(counts)} processes; start as many on "
                "each"
            )
        return hosts


def _this_host() -> str:
    # A host may have several groups of torchrun, each with its part of the devices.
    return " ".join((socket.gethostname(), BOOT.read_text(), os.environ.get("GROUP_RANK", "")))
