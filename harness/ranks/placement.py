"""On which devices a pool's ranks run, what carries their collectives, and how one settles."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from harness.case import Case

if TYPE_CHECKING:
    import torch

# Seconds that a case may take.
DEADLINE = 20.0
# Where ranks are told their devices, and where they meet.
PLACEMENT, MEETING = "HARNESS_PLACEMENT", "HARNESS_MEETING"
# A GPU that is not there, computed on the CPU; only its ranks know it as cuda:0.
PRETEND = "pretend"
UNSEEN = (
    "pretended GPU: this run shows on which device each tensor is, and nothing else of CUDA: no "
    "numerics, kernels, streams, memory, autocast, NCCL, inductor or FSDP"
)
# Values of a case that mean nothing without a real GPU.
REAL = {"wrapper": ("fsdp",), "kernel": ("varlen", "flash"), "compiled": (True,)}
# NCCL takes several ranks on one GPU only when told to, and then without NVLS. Each collective
# must leave room for those of the other ranks, or all of them wait for ever.
SHARED_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "1",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices that ranks take in turn; `sharing` processes come to use the same one."""

    devices: tuple[str, ...] = ("cpu",)
    transport: str = "gloo"
    sharing: int = 1

    @property
    def device(self) -> str:
        """What kind of device it is."""
        return self.devices[0].partition(":")[0]

    @property
    def computes_on(self) -> str:
        """One of those that compute, as torch calls it: what is only pretended is the CPU."""
        return "cpu" if self.on_cpu else self.devices[0]

    @property
    def on_cpu(self) -> bool:
        """Whether no driver is needed."""
        return self.device in ("cpu", PRETEND)

    @property
    def unseen(self) -> str:
        """What a case that passes here says nothing about."""
        return UNSEEN if self.device == PRETEND else ""

    def refuses(self, case: Case) -> str | None:
        """None, or why these ranks cannot run a case."""
        if self.device != PRETEND:
            return None
        asked = ((field, getattr(case, field)) for field in REAL)
        return next((no_pretence(*each) for each in asked if each[1] in REAL[each[0]]), None)

    def __str__(self) -> str:
        return f"{','.join(self.devices)} {self.transport} {self.sharing}"

    @classmethod
    def read(cls, text: str) -> Self:
        """And back."""
        devices, transport, sharing = text.split()
        return cls(tuple(devices.split(",")), transport, int(sharing))

    def environment(self) -> dict[str, str]:
        """What a rank has to know of it."""
        shared = self.transport == "nccl" and self.sharing > 1
        return {PLACEMENT: str(self)} | (SHARED_GPU if shared else {})


def no_pretence(field: str, value: object) -> str:
    """Why it is not run on a pretended GPU."""
    return f"{field}={value}: needs a real GPU; use --device cuda, or leave it out"


def settle(local: int) -> "torch.device":
    """Take the device of this rank, as its environment says, and meet the other ranks."""
    import torch
    from torch import distributed as dist

    from harness.ranks import precision

    placement = Placement.read(os.environ[PLACEMENT])
    pretended = placement.device == PRETEND
    name = "cpu" if pretended else placement.devices[local % len(placement.devices)]
    device = torch.device(name)
    precision.keep()
    if device.type == "cpu":
        torch.set_num_threads(1)
        # For half precisions oneDNN would compile, and keep, a kernel for every shape it meets.
        torch.backends.mkldnn.set_flags(_enabled=False)
    else:
        torch.accelerator.set_device_index(device.index)
        # A rank that takes more than its part runs out of memory itself, and not its peer.
        module = torch.get_device_module(device)
        module.set_per_process_memory_fraction(1 / placement.sharing, device)
    # Told its device, a transport connects at once, and a barrier knows what to wait on. That of
    # gloo waits on the host.
    own = None if placement.transport == "gloo" else device
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        placement.transport,
        store=_meet(os.environ[MEETING], world),
        rank=rank,
        world_size=world,
        device_id=own,
    )
    if pretended:
        from harness.pretend import begin

        return begin()
    return device


def _meet(where: str, world: int) -> Any:
    """In a file, or at HOST:PORT/PLACE, in the store of a launcher."""
    from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

    if where.startswith("/"):
        return FileStore(where, world)
    there, _, place = where.partition("/")
    host, _, port = there.rpartition(":")
    return PrefixStore(place, TCPStore(host, int(port), is_master=False))
