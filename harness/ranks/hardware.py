"""What a rank computes on: what it is, whether a step used it, and all of it touched once."""

import ctypes
import re
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from harness.ranks.messages import refuse_over_gloo

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def described(device: torch.device) -> dict[str, str]:
    """Everything on and below the device that a result may depend on."""
    found = {"torch": str(torch.__version__)}
    if device.type == "cpu":
        return found
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
            found[what] = str(ask())
        except Exception as error:  # noqa: BLE001 - nobody is to be kept from computing by it
            found[what] = f"unknown, {type(error).__name__}"
    return found


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


def make_ready(device: torch.device) -> None:
    """What a device needs besides, before the first case."""
    if device.type != "cpu":
        refuse_over_gloo()
        warm_up(device)


def warm_up(device: torch.device) -> None:
    """Have libraries loaded, kernels found and buffers pinned before any case is timed.

    On a cold disk, and for several processes on one device, that can outlast a case's deadline.
    """
    for dtype in DTYPES:
        # What cannot run here is for a case to find.
        with suppress(RuntimeError):
            _small_step(device, dtype)
    dist.all_reduce(torch.ones(1, device=device))
    torch.accelerator.synchronize(device)


def _small_step(device: torch.device, dtype: torch.dtype) -> None:
    """A bit of everything that a model does -> T tokens, D hidden dims, M heads, V words."""
    table = nn.Embedding(4, 8, device=device, dtype=dtype)
    x_TD = F.rms_norm(table(torch.arange(4, device=device)), (8,))
    # As kernels want it, with a batch of one.
    q_MTH = (x_TD @ x_TD.mT @ x_TD).unflatten(1, (1, 8)).transpose(0, 1)[None]
    attended_MTH = F.scaled_dot_product_attention(q_MTH, q_MTH, q_MTH, is_causal=True)[0]
    logits_TV = attended_MTH.transpose(0, 1).flatten(1) @ table.weight.mT
    F.cross_entropy(logits_TV.float(), torch.arange(4, device=device)).backward()
    gradient = table.weight.grad
    assert isinstance(gradient, Tensor)
    gradient.to("cpu", non_blocking=True)
