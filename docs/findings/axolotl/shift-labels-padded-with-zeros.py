"""Context parallelism pads shift_labels with 0, so padding learns token 0.

axolotl 0.19.0. Only a custom collator gives shift_labels beside labels, such as that of a plugin;
transformers' loss takes them as they are. A row of 3 tokens on two ranks of a CPU.

    python shift-labels-padded-with-zeros.py
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
    from axolotl.utils.ctx_managers import sequence_parallel as sharing
    from axolotl.utils.schemas.enums import RingAttnFunc

    batch = {
        "input_ids": torch.tensor([[5, 6, 7]]),
        "labels": torch.tensor([[5, 6, 7]]),
        "shift_labels": torch.tensor([[6, 7, -100]]),
    }
    cut, *_ = sharing.apply_sequence_parallelism(batch, rank, RANKS, 1, RingAttnFunc.BATCH_RING)
    if rank == RANKS - 1:
        queue.put(cut["shift_labels"][0].tolist())
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = [-100, -100]
    print("what the last rank has to predict: its one token is the last, then comes padding")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
