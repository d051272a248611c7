"""Which device the ranks use, and what carries their collectives."""

import torch


class NoDevice(ValueError):
    """The device asked for is not here."""


def choose(device: str, ranks: int) -> tuple[str, str]:
    """(device, transport): NCCL needs a GPU for every rank, gloo also shares one."""
    accelerator = torch.accelerator.current_accelerator()
    found = accelerator.type if accelerator and torch.accelerator.is_available() else "cpu"
    if device == "auto":
        device = "cuda" if found == "cuda" else "cpu"
    if device == "cuda" and found != "cuda":
        raise NoDevice(f"--device=cuda: torch {torch.__version__} finds no CUDA device; use cpu")
    if device == "cuda" and torch.accelerator.device_count() >= ranks:
        return device, "nccl"
    return device, "gloo"
