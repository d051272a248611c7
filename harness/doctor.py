"""Find out which devices, transports and kernels work on this machine, and why others do not."""

import importlib.metadata
import os
import platform
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import distributed as dist

import harness
from harness.candidates.own.native.kernels import KERNELS
from harness.candidates.own.native.usable import REQUIRED, lacking
from harness.rank_program.placement import Placement
from harness.ranks.device import TRANSPORTS, find_accelerator
from harness.ranks.shared_gpu import why_ranks_cannot_share

PACKAGES = ("numpy", "safetensors", "hypothesis", "rich", "pytest", "pytest-xdist", "flash-attn")


def examine() -> dict[str, Any]:
    """Return versions, and for each device, transport and kernel if it is usable, or why not."""
    kind, count = find_accelerator()
    return {
        "versions": {
            "harness": harness.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: _version(name) for name in PACKAGES},
        },
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "devices": {
            "cpu": _yes(),
            "pretend": _yes("computed on the CPU; finds tensors on the wrong device"),
            **{device: _device(device, kind, count) for device in TRANSPORTS},
        },
        "transports": {
            "gloo": _yes() if dist.is_gloo_available() else _no("this torch was built without it"),
            **{TRANSPORTS[device]: _transport(device, kind, count) for device in TRANSPORTS},
            "nccl on a shared GPU": _shared_gpu(kind),
        },
        "kernels": {kernel: _kernel(kernel) for kernel in KERNELS},
        "processes": {
            "pidfd": _pidfd(),
            "flight recorder": _flight_recorder(),
        },
    }


def show(facts: dict[str, Any]) -> None:
    """Print what `examine` returned as a table."""
    table = Table(show_header=False)
    for part, items in facts.items():
        table.add_section()
        for name, value in items.items():
            text = str(value)
            if isinstance(value, dict):
                why = f", {value['why']}" if value["why"] else ""
                text = f"{'yes' if value['usable'] else 'no'}{why}"
            table.add_row(part, name, text)
    Console().print(table)


def _device(device: str, kind: str, count: int) -> dict[str, Any]:
    if device != kind:
        return _no(f"torch finds no {device.upper()} device")
    return _yes(f"{count} found")


def _transport(device: str, kind: str, count: int) -> dict[str, Any]:
    if not dist.is_backend_available(TRANSPORTS[device]):
        return _no("this torch is without it")
    if device != kind:
        return _no(f"no {device.upper()} device")
    return _yes(f"for up to {count} ranks")


def _shared_gpu(kind: str) -> dict[str, Any]:
    if kind != "cuda" or not dist.is_nccl_available():
        return _no("needs a CUDA device and nccl")
    why = why_ranks_cannot_share(Placement(("cuda:0",), "nccl", sharing=2), 2)
    return _no(f"2 ranks share a GPU, {why}") if why else _yes("tried with 2 ranks")


def _kernel(kernel: str) -> dict[str, Any]:
    if kernel not in REQUIRED:
        return _yes()
    lacks = lacking(kernel)
    return _no(f"lacks {' and '.join(lacks)}") if lacks else _yes("in bf16 and fp16, on CUDA")


def _pidfd() -> dict[str, Any]:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return _no(f"{error}; the harness looks after its processes 20 times a second")
    return _yes()


def _flight_recorder() -> dict[str, Any]:
    from torch._C import _distributed_c10d as c10d

    if hasattr(c10d, "_dump_fr_trace_json"):
        return _yes()
    return _no("this torch keeps no log of collectives; hangs will not be named")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _yes(why: str = "") -> dict[str, Any]:
    return {"usable": True, "why": why}


def _no(why: str) -> dict[str, Any]:
    return {"usable": False, "why": why}
