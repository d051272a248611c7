"""Context parallelism never trains on the first token of any shard but the first.

axolotl 0.19.0, transformers 5.16.1. Labels are cut before the loss of transformers moves them
up by one, so that nobody predicts the first token of the second rank. Two ranks on a CPU; the
losses of all tokens are log(10), so their sum tells how many there were.

    python label-lost-at-cut.py
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

RANKS, TOKENS = 2, 8


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    from axolotl.utils.ctx_managers import sequence_parallel as sharing
    from axolotl.utils.schemas.enums import RingAttnFunc

    batch = {
        "input_ids": torch.arange(TOKENS)[None],
        "labels": torch.arange(TOKENS)[None],
    }
    cut, *_ = sharing.apply_sequence_parallelism(batch, rank, RANKS, 1, RingAttnFunc.BATCH_RING)
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits = torch.zeros(1, TOKENS // RANKS, 10)
    loss = ForCausalLMLoss(logits, cut["labels"], 10, num_items_in_batch=1)
    dist.all_reduce(loss)
    if rank == 0:
        queue.put(round(float(loss / torch.tensor(10.0).log())))
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = TOKENS - 1
    print("tokens that are learnt, of a row of 8")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
