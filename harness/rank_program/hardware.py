"""The hardware and libraries of a rank, and whether it used its device."""

import ctypes
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def describe_hardware(device: torch.device) -> dict[str, str]:
    """Return the device, its driver and its libraries: everything that a result may depend on."""
    facts = {"torch": str(torch.__version__)}
    if device.type == "cpu":
        return facts
    device_name = torch.get_device_module(device).get_device_name
    queries: dict[str, Callable[[], object]] = {device.type: lambda: device_name(device)}
    if device.type == "cuda":
        queries |= {
            "cuda driver": cuda_driver_version,
            "cuda runtime": lambda: torch.version.cuda,
            "cudnn": torch.backends.cudnn.version,
            "nccl": lambda: ".".join(map(str, nccl_version() or ("none",))),
            "flash-attn": flash_attention_version,
        }
    for name, query in queries.items():
        try:
            facts[name] = str(query())
        except Exception as error:  # noqa: BLE001 - a rank can compute without this answer
            facts[name] = f"unknown, {type(error).__name__}"
    return facts


def cuda_driver_version() -> str:
    """Return the newest CUDA that the driver runs; raise `OSError` if there is no driver."""
    code = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(code))
    major, minor = divmod(code.value, 1000)
    return f"{major}.{minor // 10}"


def flash_attention_version() -> str:
    """Return the installed release, or "none"."""
    try:
        return version("flash-attn")
    except PackageNotFoundError:
        return "none"


@cache
def nccl_version() -> tuple[int, int, int] | None:
    """Return the version of the loaded NCCL; torch only knows the one it was compiled with."""
    # A preloaded NCCL comes first in the global namespace, as it does for every caller.
    library = ctypes.CDLL(None)
    if not hasattr(library, "ncclGetVersion"):
        file = re.search(r"/\S*libnccl\.so\S*", Path("/proc/self/maps").read_text())
        if file is None:
            return None
        library = ctypes.CDLL(file[0])
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    major, rest = divmod(code.value, 10_000)
    minor, patch = divmod(rest, 100)
    return major, minor, patch


def count_allocations(device: torch.device) -> int:
    """Return how often this process has allocated memory on its device; 0 if torch cannot count.

    After the warm-up the count is above 0. Only CUDA counts, and not with every allocator.
    """
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))
