"""The devices of a pool's ranks, the transport of their collectives, and how a rank takes them."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from harness.case import Case

if TYPE_CHECKING:
    import torch

# Variables of a rank: its placement, and where it meets the other ranks.
PLACEMENT, MEETING = "HARNESS_PLACEMENT", "HARNESS_MEETING"
# A pretended GPU computes on the CPU; only its ranks know it as cuda:0.
PRETEND = "pretend"
UNSEEN = (
    "pretended GPU: this run shows on which device each tensor is, and nothing else of CUDA: no "
    "numerics, kernels, streams, memory, autocast, NCCL, inductor or FSDP"
)
# Values of a case that mean nothing without a real GPU.
NEEDS_REAL_GPU = {"wrapper": ("fsdp",), "kernel": ("varlen", "flash"), "compiled": (True,)}
# NCCL takes several ranks on one GPU only with the first of these, and then without NVLS. Each
# collective must leave room for those of the other ranks, or all of them wait for ever.
SHARED_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "1",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices that ranks take in turn; up to `sharing` processes use the same one."""

    devices: tuple[str, ...] = ("cpu",)
    transport: str = "gloo"
    sharing: int = 1

    @property
    def device(self) -> str:
        """The kind of device."""
        return self.devices[0].partition(":")[0]

    @property
    def computes_on(self) -> str:
        """One device that computes, as torch names it; for a pretended GPU that is the CPU."""
        return "cpu" if self.on_cpu else self.devices[0]

    @property
    def on_cpu(self) -> bool:
        """Whether ranks need no driver."""
        return self.device in ("cpu", PRETEND)

    @property
    def unseen(self) -> str:
        """The aspects about which a passing case shows nothing, or ""."""
        return UNSEEN if self.device == PRETEND else ""

    def refuses(self, case: Case) -> str | None:
        """Return None, or why these ranks cannot run a case."""
        if self.device != PRETEND:
            return None
        values = ((field, getattr(case, field)) for field in NEEDS_REAL_GPU)
        return next(
            (needs_real_gpu(*each) for each in values if each[1] in NEEDS_REAL_GPU[each[0]]), None
        )

    def __str__(self) -> str:
        return f"{','.join(self.devices)} {self.transport} {self.sharing}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the placement that `str` has written."""
        devices, transport, sharing = text.split()
        return cls(tuple(devices.split(",")), transport, int(sharing))

    def environment(self) -> dict[str, str]:
        """Return the variables by which a rank knows its placement."""
        is_shared = self.transport == "nccl" and self.sharing > 1
        return {PLACEMENT: str(self)} | (SHARED_GPU if is_shared else {})


def needs_real_gpu(field: str, value: object) -> str:
    """Return why a value of a case cannot run on a pretended GPU."""
    return f"{field}={value}: needs a real GPU; use --device cuda, or leave it out"


def join_ranks(local: int) -> "torch.device":
    """Take the device of this rank, join the process group, and return the device."""
    import torch
    from torch import distributed as dist

    from harness.rank_program import precision

    placement = Placement.read(os.environ[PLACEMENT])
    is_pretended = placement.device == PRETEND
    name = "cpu" if is_pretended else placement.devices[local % len(placement.devices)]
    device = torch.device(name)
    precision.use_full_precision()
    if device.type == "cpu":
        torch.set_num_threads(1)
        # For half precisions oneDNN would compile, and keep, a kernel for every shape.
        torch.backends.mkldnn.set_flags(_enabled=False)
    else:
        torch.accelerator.set_device_index(device.index)
        # A rank that takes more than its part then runs out of memory itself, and not its peer.
        module = torch.get_device_module(device)
        module.set_per_process_memory_fraction(1 / placement.sharing, device)
    # With a device, a transport connects at once, and its barriers wait there. Barriers of gloo
    # have to wait on the host.
    bound_device = None if placement.transport == "gloo" else device
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        placement.transport,
        store=_open_store(os.environ[MEETING], world),
        rank=rank,
        world_size=world,
        device_id=bound_device,
    )
    if is_pretended:
        from harness.pretend import pretend_gpu_for_good

        device = pretend_gpu_for_good()
    if device.index is not None:
        # Training code takes the device with this number, and ranks may share one.
        os.environ["LOCAL_RANK"] = str(device.index)
    return device


def _open_store(where: str, world: int) -> Any:
    """Open a store in the file /PATH, or the launcher's at HOST:PORT/PREFIX."""
    from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

    if where.startswith("/"):
        return FileStore(where, world)
    address, _, prefix = where.partition("/")
    host, _, port = address.rpartition(":")
    return PrefixStore(prefix, TCPStore(host, int(port), is_master=False))
