"""Context parallelism replaces num_items_in_batch with a truncated local count.

axolotl 0.19.0. Latent there: no trainer of this release uses a loss that was divided by the count.
The trainer's count is of all accumulated micro-batches. Here there are two of them, with 9
targets together and 3 in this one, none of them at the cut. transformers divides the count by
context_parallel_size (trainer.py:2208); here it comes divided truly, as 4.5. So a library that
keeps it is right. Two ranks on a CPU.

    python items-of-one-micro-batch.py
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
    from axolotl.monkeypatch.ring_attn import set_ring_attn_group
    from axolotl.utils.ctx_managers import sequence_parallel as sharing
    from axolotl.utils.schemas.enums import RingAttnFunc

    def all_reduce(tensor: torch.Tensor, op: Any, group: Any) -> None:
        """NCCL averages integers, and cuts off what remains; gloo does not."""
        dist_all_reduce(tensor, group=group)
        tensor //= RANKS

    dist_all_reduce, dist.all_reduce = dist.all_reduce, all_reduce
    set_ring_attn_group(dist.group.WORLD)
    batch = {
        "input_ids": torch.arange(6)[None],
        "labels": torch.tensor([[-100, 1, -100, -100, 4, 5]]),
        "num_items_in_batch": 9 / RANKS,
    }
    cut, *_ = sharing.apply_sequence_parallelism(batch, rank, RANKS, 2, RingAttnFunc.BATCH_RING)
    if rank == 0:
        queue.put(cut["num_items_in_batch"])
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = 9 / RANKS
    print("what each rank has to divide its sum by, where FSDP averages over two ranks")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
