"""Which devices the ranks of a pool use, and what carries their collectives."""

import math
from functools import cache

import torch
from torch import distributed as dist

from harness.ranks.placement import DEADLINE, PRETEND, Placement
from harness.ranks.shared_gpu import why_not

# Every accelerator we know, and what carries collectives between ranks that have one each.
TRANSPORTS = {"cuda": "nccl", "npu": "hccl", "xpu": "xccl"}


class NoPlace(ValueError):
    """The ranks cannot run where they were asked to; the message begins with option=value."""

    def __init__(self, option: str, value: str, why: str) -> None:
        super().__init__(f"{option}={value}: {why}")


def at_hand() -> tuple[str, int]:
    """The accelerator of this machine, and how many of it there are; the CPU if there is none."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type not in TRANSPORTS:
        return "cpu", 1
    return accelerator.type, torch.accelerator.device_count()


def share(count: int, worker: int, workers: int) -> range:
    """Which of `count` devices a test worker has for itself, or shares if they are too few."""
    # One that takes the place of a worker that crashed is numbered on.
    worker %= workers
    if workers > count:
        return range(worker % count, worker % count + 1)
    return range(worker * count // workers, (worker + 1) * count // workers)


def choose(
    device: str, transport: str, ranks: int, *, worker: int = 0, workers: int = 1
) -> Placement:
    """Where so many ranks run; `NoPlace` if they cannot as asked.

    Whether they can share a GPU over NCCL is tried with other ranks first.
    """
    kind, count = at_hand()
    mine = share(count, worker, workers)[:ranks]
    if device == "auto":
        # What cannot be shared, and was not asked for, is left alone.
        device = kind if kind == "cuda" or len(mine) == ranks else "cpu"
    if device in ("cpu", PRETEND):
        if transport not in ("auto", "gloo"):
            raise NoPlace("transport", transport, "carries nothing between CPUs; use gloo")
        return Placement() if device == "cpu" else Placement((f"{PRETEND}:0",), sharing=ranks)
    if device != kind:
        why = f"torch {torch.__version__} finds no {device.upper()} device; use cpu"
        raise NoPlace("device", device, why)
    placement = Placement(
        tuple(f"{device}:{index}" for index in mine),
        _carrier(device, transport, ranks, len(mine)),
        math.ceil(ranks / len(mine)) * math.ceil(workers / count),
    )
    if placement.transport == "nccl" and len(mine) < ranks:
        why = why_not(placement, ranks)
        if why:
            shared = ", ".join(placement.devices)
            raise NoPlace("transport", "nccl", f"{ranks} ranks share {shared}, {why}; use gloo")
    return placement


@cache
def options_for(placement: Placement, ranks: int, deadline: float) -> tuple[str, ...]:
    """Options with which a command has its ranks run so, if it would not by itself."""
    device, transport = placement.device, placement.transport
    words: list[str] = []
    if device != choose("auto", "auto", ranks).device:
        words += ["--device", device]
    if transport != choose(device, "auto", ranks).transport:
        words += ["--transport", transport]
    if deadline != DEADLINE:
        words += ["--deadline", f"{deadline:g}"]
    return tuple(words)


def _carrier(device: str, transport: str, ranks: int, devices: int) -> str:
    own, torch_here = TRANSPORTS[device], f"torch {torch.__version__}"
    built = dist.is_backend_available(own)
    if transport == "auto" and built and ranks <= devices:
        return own
    if transport == own and not built:
        raise NoPlace("transport", own, f"{torch_here} is without it; use gloo")
    # Only CUDA devices can be shared: gloo carries no other's tensors.
    if device == "cuda":
        return "gloo" if transport == "auto" else transport
    if transport != "auto":
        raise NoPlace("transport", transport, f"carries nothing between {device}s; use auto")
    if not built:
        raise NoPlace("device", device, f"{torch_here} is without {own}; use cpu")
    why = f"{ranks} ranks cannot share {devices} of them; use fewer ranks, or cpu"
    raise NoPlace("device", device, why)
