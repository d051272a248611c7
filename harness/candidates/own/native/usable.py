"""Which attention kernels this machine can run, and what the others lack."""

from importlib import import_module
from inspect import signature

import torch

from harness.case import Case

# For each kernel: its requirement, module and function, and an argument new in that release.
REQUIRED = {
    "varlen": ("torch>=2.11", "torch.nn.attention.varlen", "varlen_attn", "window_size"),
    "flash": ("flash-attn>=2.8", "flash_attn", "flash_attn_varlen_func", "deterministic"),
}
DTYPES = ("bf16", "fp16")
CAPABILITY = (8, 0)
MAX_HEAD_DIM = 256


def lacking(kernel: str) -> list[str]:
    """List what this machine lacks to run a kernel; an empty list if it can."""
    if kernel not in REQUIRED:
        return []
    missing = []
    requirement, module, function, argument = REQUIRED[kernel]
    try:
        if argument not in signature(getattr(import_module(module), function)).parameters:
            missing.append(f"{requirement} (this {function} has no {argument})")
    except (ImportError, AttributeError) as error:
        missing.append(f"{requirement} ({error})")
    if not torch.cuda.is_available():
        return [*missing, "a CUDA device (torch finds none)"]
    weakest = min(map(torch.cuda.get_device_capability, range(torch.cuda.device_count())))
    if weakest < CAPABILITY:
        missing.append("a GPU of sm{}{} or newer (one has sm{}{})".format(*CAPABILITY, *weakest))
    return missing


def unsupported_reason(case: Case) -> str | None:
    """Return why no rank on this machine can run the kernel of a case, or None if one can."""
    name = f"kernel={case.kernel}"
    if case.kernel not in REQUIRED:
        return None
    if case.dtype not in DTYPES:
        return (
            f"{name}: dtype={case.dtype} is none of bf16 and fp16, all that it computes in; "
            "use one of them, or kernel=eager or sdpa"
        )
    if case.head_dim > MAX_HEAD_DIM:
        return (
            f"{name}: head_dim={case.head_dim} is more than {MAX_HEAD_DIM}, the most that it "
            "takes; use less, or kernel=eager or sdpa"
        )
    if lacks := lacking(case.kernel):
        return f"{name}: this machine lacks {' and '.join(lacks)}; use kernel=eager or sdpa"
    return None
