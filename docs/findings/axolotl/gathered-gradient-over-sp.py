"""GRPO with context parallelism: gradients are context_parallel_size times too small.

axolotl 0.19.0. After AllGatherWithGrad every rank has the whole loss, but backward gives each
only its own slice, and FSDP averages. The model is y = w x with x = 1, the loss the sum of y
over a row of 8. Two ranks on a CPU.

    python gathered-gradient-over-sp.py
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

RANKS = 2


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    from axolotl.utils.ctx_managers.sequence_parallel import AllGatherWithGrad

    weight = torch.ones((), requires_grad=True)
    mine = weight * torch.ones(1, 8 // RANKS, 1)
    AllGatherWithGrad.apply(mine, dist.group.WORLD).sum().backward()
    # As FSDP does.
    dist.all_reduce(weight.grad)
    if rank == 0:
        queue.put(float(weight.grad / RANKS))
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = 8.0
    print("gradient of the weight")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
