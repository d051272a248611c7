"""TiledFusedLogitsLoss: gradient accumulation, a loss scale, or a division after it do not reach
the gradients of compute_params

DeepSpeed 0.19.8, one process, no GPU. The docstring recommends output_reduction="sum" and to take
the mean afterwards. The gradients of compute_params are taken in forward, at an incoming gradient
of 1; backward scales only the gradient of x. So lm_head is trained with another factor than all
other weights. A loss scale or gradient accumulation is lost in the same way. With --control the
sum is the loss, and nothing divides it.

    python tiled-fused-head-not-scaled.py
"""

import logging
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
# The library logs the time to where this prints.
logging.disable(logging.WARNING)

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, HIDDEN, VOCAB, SHARDS = 6, 8, 16, 3


def loss_fn(head: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(head(x), y, reduction="sum")


def gradients(*, tiled: bool) -> tuple[float, Tensor, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCAB, bias=False)
    x = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    y = torch.randint(VOCAB, (1, TOKENS))
    if tiled:
        total = TiledFusedLogitsLoss.apply(loss_fn, head, x, y, None, SHARDS, [head.weight], "sum")
    else:
        total = loss_fn(head, x.flatten(0, 1), y.flatten())
    loss = total if "--control" in sys.argv else total / TOKENS
    loss.backward()
    assert head.weight.grad is not None
    assert x.grad is not None
    return loss.item(), head.weight.grad, x.grad


expected, got = gradients(tiled=False), gradients(tiled=True)
for name, (loss, head_grad, x_grad) in (("expected", expected), ("got     ", got)):
    print(
        f"{name} loss {loss:.4f}  |grad of lm_head| {head_grad.norm():.4f}  "
        f"|grad of x| {x_grad.norm():.4f}"
    )
sys.exit(not torch.allclose(expected[1], got[1], atol=1e-5))
