"""Where tensors come from: what may move their last bits."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

import harness

# Told by torch where it was built with CUDA, and nowhere else.
DRIVER = "_cuda_getDriverVersion"
# Raised when goldens are made in another way than before.
GENERATOR = "1"


def fingerprint(device: str = "cpu") -> dict[str, str]:
    """Versions, platform and processor."""
    made = {
        "generator": GENERATOR,
        "harness": harness.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": device,
    }
    if device == "cuda":
        made |= _gpu()
    return made


def commit(folder: Path) -> str:
    """What is checked out, if anything is."""
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def _gpu() -> dict[str, str]:
    try:
        flash = importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        flash = "none"
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": str(getattr(torch._C, DRIVER)()),  # noqa: SLF001 - nowhere else
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "flash-attn": flash,
    }
