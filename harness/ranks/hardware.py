"""What a rank computes on, and whether it was used, as drivers and libraries tell it."""

import ctypes
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def described(device: torch.device) -> dict[str, str]:
    """Everything on and below the device that a result may depend on."""
    versions = {"torch": str(torch.__version__)}
    if device.type == "cpu":
        return versions
    name = torch.get_device_module(device).get_device_name
    asked: dict[str, Callable[[], object]] = {device.type: lambda: name(device)}
    if device.type == "cuda":
        asked |= {
            "cuda driver": driver,
            "cuda runtime": lambda: torch.version.cuda,
            "cudnn": torch.backends.cudnn.version,
            "nccl": lambda: ".".join(map(str, loaded_nccl() or ("none",))),
            "flash-attn": flash_attention,
        }
    for what, ask in asked.items():
        try:
            versions[what] = str(ask())
        except Exception as error:  # noqa: BLE001 - nobody is to be kept from computing by it
            versions[what] = f"unknown, {type(error).__name__}"
    return versions


def driver() -> str:
    """The newest CUDA that the driver runs; `OSError` where there is none."""
    code = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(code))
    major, minor = divmod(code.value, 1000)
    return f"{major}.{minor // 10}"


def flash_attention() -> str:
    """Which release is installed, if any."""
    try:
        return version("flash-attn")
    except PackageNotFoundError:
        return "none"


@cache
def loaded_nccl() -> tuple[int, int, int] | None:
    """The NCCL in this process: torch tells which one it was compiled with, whatever is loaded."""
    # What everybody here calls by that name; one that was preloaded comes before torch's own.
    called = ctypes.CDLL(None)
    if not hasattr(called, "ncclGetVersion"):
        library = re.search(r"/\S*libnccl\.so\S*", Path("/proc/self/maps").read_text())
        if library is None:
            return None
        called = ctypes.CDLL(library[0])
    code = ctypes.c_int()
    called.ncclGetVersion(ctypes.byref(code))
    major, rest = divmod(code.value, 10_000)
    minor, patch = divmod(rest, 100)
    return major, minor, patch


def allocations(device: torch.device) -> int:
    """How often this process has asked for memory on its device; 0 where nobody counts.

    After the warm-up it is more. Some allocators do not count, nor do devices other than CUDA's.
    """
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))
