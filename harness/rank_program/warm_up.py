"""Use everything on a device that a case needs, once before the first case."""

from contextlib import suppress

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def warm_up(device: torch.device) -> None:
    """Load libraries, find kernels and pin buffers before any case is timed.

    From a cold disk, or for several processes on one device, this can outlast a case's deadline.
    """
    for dtype in DTYPES:
        # A case will report what cannot run on this device.
        with suppress(RuntimeError):
            _small_step(device, dtype)
    dist.all_reduce(torch.ones(1, device=device))
    torch.accelerator.synchronize(device)


def _small_step(device: torch.device, dtype: torch.dtype) -> None:
    """Do a bit of everything that a model does -> T tokens, D hidden dims, M heads, V words."""
    table = nn.Embedding(4, 8, device=device, dtype=dtype)
    x_TD = F.rms_norm(table(torch.arange(4, device=device)), (8,))
    # Kernels expect a batch dimension, here of one.
    q_MTH = (x_TD @ x_TD.mT @ x_TD).unflatten(1, (1, 8)).transpose(0, 1)[None]
    attended_MTH = F.scaled_dot_product_attention(q_MTH, q_MTH, q_MTH, is_causal=True)[0]
    logits_TV = attended_MTH.transpose(0, 1).flatten(1) @ table.weight.mT
    F.cross_entropy(logits_TV.float(), torch.arange(4, device=device)).backward()
    gradient = table.weight.grad
    assert isinstance(gradient, Tensor)
    gradient.to("cpu", non_blocking=True)
