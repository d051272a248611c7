"""Context parallelism averages the shards' mean losses, though shards have unequal numbers of
targets.

axolotl 0.19.0, transformers 5.16.1. AxolotlTrainer sets model_accepts_loss_kwargs to False, so
that each rank's loss is the mean over its own shard, and FSDP averages over ranks. Two ranks on
a CPU; losses are 2.303 on the first, where three are learnt, and 0 on the second, where one is.

    python loss-mean-of-means.py
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
        "input_ids": torch.arange(8)[None],
        "labels": torch.tensor([[-100, 1, 2, 3, -100, -100, -100, 7]]),
    }
    cut, *_ = sharing.apply_sequence_parallelism(batch, rank, RANKS, 1, RingAttnFunc.BATCH_RING)
    from transformers.loss.loss_utils import ForCausalLMLoss

    sure = torch.nn.functional.one_hot(cut["labels"].roll(-1).clamp(min=0), 10) * 100.0
    loss = ForCausalLMLoss(sure * rank, cut["labels"], 10)
    dist.all_reduce(loss)
    if rank == 0:
        queue.put(round(float(loss / RANKS), 4))
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = round(3 * 2.302585 / 4, 4)
    print("mean of four losses")
    print("expected", expected)
    print("got     ", got)
    return 0 if abs(got - expected) < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
