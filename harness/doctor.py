"""What will run on this machine, what will not, and why."""

import importlib.metadata
import os
import platform
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import distributed as dist

import harness

PACKAGES = ("numpy", "safetensors", "hypothesis", "rich", "pytest", "pytest-xdist", "flash-attn")


def examine() -> dict[str, Any]:
    """Versions, and for every device, transport and kernel whether and why not."""
    cuda = torch.cuda.is_available()
    count = torch.cuda.device_count() if cuda else 0
    return {
        "versions": {
            "harness": harness.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: _version(name) for name in PACKAGES},
        },
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "gpus": count},
        "devices": {
            "cpu": _yes(),
            "cuda": _yes(f"{count} found") if cuda else _no("torch finds no CUDA device"),
        },
        "transports": {
            "gloo": _yes() if dist.is_gloo_available() else _no("this torch was built without it"),
            "nccl": _nccl(count),
        },
        "kernels": {
            "eager": _yes(),
            "sdpa": _yes(),
            "varlen": _no("not wired into the native path yet"),
            "flash": _no("not wired into the native path yet"),
        },
        "processes": {
            "pidfd": _yes() if hasattr(os, "pidfd_open") else _no("needs Linux 5.3"),
            "flight recorder": _flight_recorder(),
        },
    }


def show(findings: dict[str, Any]) -> None:
    """The findings as a table."""
    table = Table(show_header=False)
    for part, items in findings.items():
        table.add_section()
        for name, value in items.items():
            text = value
            if isinstance(value, dict):
                text = ("yes" if value["usable"] else "no") + (
                    f", {value['why']}" if value["why"] else ""
                )
            table.add_row(part, name, str(text))
    Console().print(table)


def _nccl(gpus: int) -> dict[str, Any]:
    if not dist.is_nccl_available():
        return _no("this torch was built without it")
    return _yes(f"for up to {gpus} ranks") if gpus else _no("no CUDA device")


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
