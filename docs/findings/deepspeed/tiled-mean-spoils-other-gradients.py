"""SequenceTiledCompute.backward with output_reduction "mean" divides its incoming gradient in
place, and so that of losses computed before and added to it

DeepSpeed 0.19.8, one process, no GPU. Backward does `incoming_grad /= shards` in place, and
autograd hands the same tensor to every term of a sum. The gradients of an auxiliary loss that was
computed before the tiled one, and is added to it, are divided by shards. With --control the
auxiliary loss is computed after the tiled one.

    python tiled-mean-spoils-other-gradients.py
"""

import logging
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
# The library logs the time to where this prints.
logging.disable(logging.WARNING)

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, HIDDEN, VOCAB, SHARDS = 6, 8, 16, 3


def loss_fn(x: Tensor, y: Tensor, head: nn.Module) -> Tensor:
    return F.cross_entropy(head(x).flatten(0, 1), y.flatten())


def auxiliary_gradient(*, tiled: bool) -> tuple[float, float]:
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCAB, bias=False)
    x = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    y = torch.randint(VOCAB, (1, TOKENS))
    # Stands for a router or any other part that only the auxiliary loss trains.
    router = torch.ones((), requires_grad=True)
    auxiliary = router * 2
    if tiled:
        main = sequence_tiled_compute(
            loss_fn,
            TOKENS,
            SHARDS,
            {"x": x, "y": y},
            {"head": head},
            "x",
            [head.weight],
            output_unshard_dimension=0,
            output_reduction="mean",
        )
    else:
        main = loss_fn(x, y, head)
    if "--control" in sys.argv:
        auxiliary = router * 2
    loss = main + auxiliary
    loss.backward()
    assert router.grad is not None
    return loss.item(), router.grad.item()


expected, got = auxiliary_gradient(tiled=False), auxiliary_gradient(tiled=True)
for name, (loss, gradient) in (("expected", expected), ("got     ", got)):
    print(f"{name} loss {loss:.4f}  gradient of the auxiliary loss {gradient:.4f}")
sys.exit(abs(expected[1] - got[1]) > 1e-5)
