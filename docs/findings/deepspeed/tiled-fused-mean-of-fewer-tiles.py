"""TiledFusedLogitsLoss: with output_reduction mean, gradients are too small where there are fewer
tiles than shards

DeepSpeed 0.19.8, one process, no GPU. torch.chunk makes 2 tiles of 4 tokens and 3 shards. With
output_reduction="mean" the loss is the mean over 2 tiles, and its gradient is divided by 3. The
docstring recommends "sum" where tiles have unlike numbers of tokens. Here both have two, and the
loss is right; only its gradient is not.

    python tiled-fused-mean-of-fewer-tiles.py
"""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, HIDDEN, VOCAB, SHARDS = 4, 8, 16, 3


def loss_fn(head: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(head(x), y)


def gradients(*, tiled: bool) -> tuple[float, Tensor, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCAB, bias=False)
    x = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    y = torch.randint(VOCAB, (1, TOKENS))
    if tiled:
        loss = TiledFusedLogitsLoss.apply(loss_fn, head, x, y, None, SHARDS, [head.weight], "mean")
    else:
        loss = loss_fn(head, x.flatten(0, 1), y.flatten())
    loss.backward()
    assert head.weight.grad is not None
    assert x.grad is not None
    return loss.item(), head.weight.grad, x.grad


expected, got = gradients(tiled=False), gradients(tiled=True)
for name, (loss, head_grad, x_grad) in (("expected", expected), ("got     ", got)):
    print(
        f"{name} loss {loss:.6f}  |grad of lm_head| {head_grad.norm():.6f}  "
        f"|grad of x| {x_grad.norm():.6f}"
    )
sys.exit(not torch.allclose(expected[1], got[1], atol=1e-5))
