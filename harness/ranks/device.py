"""Choose the devices of a pool's ranks and the transport of their collectives."""

import math

import torch
from torch import distributed as dist

from harness.rank_program.placement import PRETEND, Placement
from harness.ranks.shared_gpu import why_ranks_cannot_share

# Every supported accelerator, and the transport between ranks that have one each.
TRANSPORTS = {"cuda": "nccl", "npu": "hccl", "xpu": "xccl"}


class ImpossiblePlacement(ValueError):
    """The ranks cannot run as requested; the message begins with option=value."""

    def __init__(self, option: str, value: str, why: str) -> None:
        super().__init__(f"{option}={value}: {why}")


def find_accelerator() -> tuple[str, int]:
    """Return the accelerator of this machine and how many there are, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type not in TRANSPORTS:
        return "cpu", 1
    return accelerator.type, torch.accelerator.device_count()


def share(count: int, worker: int, workers: int) -> range:
    """Return which of `count` devices a test worker uses, alone unless there are too few."""
    # A worker that replaces a crashed one has a higher number.
    worker %= workers
    if workers > count:
        return range(worker % count, worker % count + 1)
    return range(worker * count // workers, (worker + 1) * count // workers)


def choose_placement(
    device: str, transport: str, ranks: int, *, worker: int = 0, workers: int = 1
) -> Placement:
    """Return where so many ranks run; raise `ImpossiblePlacement` if they cannot.

    Whether ranks can share a GPU over NCCL is tried with other ranks first.
    """
    kind, count = find_accelerator()
    own = share(count, worker, workers)[:ranks]
    if device == "auto":
        # Use a device that cannot be shared only if it is requested or there are enough.
        device = kind if kind == "cuda" or len(own) == ranks else "cpu"
    if device in ("cpu", PRETEND):
        if transport not in ("auto", "gloo"):
            raise ImpossiblePlacement(
                "transport", transport, "carries nothing between CPUs; use gloo"
            )
        return Placement() if device == "cpu" else Placement((f"{PRETEND}:0",), sharing=ranks)
    if device != kind:
        why = f"torch {torch.__version__} finds no {device.upper()} device; use cpu"
        raise ImpossiblePlacement("device", device, why)
    placement = Placement(
        tuple(f"{device}:{index}" for index in own),
        _choose_transport(device, transport, ranks, len(own)),
        math.ceil(ranks / len(own)) * math.ceil(workers / count),
    )
    if placement.transport == "nccl" and len(own) < ranks:
        why = why_ranks_cannot_share(placement, ranks)
        if why:
            shared = ", ".join(placement.devices)
            raise ImpossiblePlacement(
                "transport", "nccl", f"{ranks} ranks share {shared}, {why}; use gloo"
            )
    return placement


def _choose_transport(device: str, transport: str, ranks: int, devices: int) -> str:
    own, torch_here = TRANSPORTS[device], f"torch {torch.__version__}"
    is_built = dist.is_backend_available(own)
    if transport == "auto" and is_built and ranks <= devices:
        return own
    if transport == own and not is_built:
        raise ImpossiblePlacement("transport", own, f"{torch_here} is without it; use gloo")
    # Ranks can share CUDA devices only: gloo carries tensors of no other accelerator.
    if device == "cuda":
        return "gloo" if transport == "auto" else transport
    if transport != "auto":
        raise ImpossiblePlacement(
            "transport", transport, f"carries nothing between {device}s; use auto"
        )
    if not is_built:
        raise ImpossiblePlacement("device", device, f"{torch_here} is without {own}; use cpu")
    why = f"{ranks} ranks cannot share {devices} of them; use fewer ranks, or cpu"
    raise ImpossiblePlacement("device", device, why)
