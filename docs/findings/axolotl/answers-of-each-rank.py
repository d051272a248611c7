"""rl: ebft with context_parallel_size > 1: ranks that share a sequence shuffle answers by seeds of
their own, so that one takes log-probabilities of its ids from logits of another's rows

axolotl 0.21.0 with TRL 1.14.1 and axolotl-ringmaster 0.2.7, two ranks over gloo, no GPU: the same
four answers, shuffled as GRPOTrainer._prepare_inputs does and broadcast as ringmaster's hook does
before the forward. With --control both ranks have the same seed.

    python answers-of-each-rank.py
"""

import sys
import tempfile

import torch
from ringmaster.batch import broadcast_batch
from torch import distributed as dist
from torch import multiprocessing as mp
from trl.trainer.utils import shuffle_sequence_dict

RANKS = 2
IS_SAME_SEED = "--control" in sys.argv


def rank(index, store, results):
    dist.init_process_group("gloo", f"file://{store}", rank=index, world_size=RANKS)
    # As set_seed(args.seed, device_specific=True) in GRPOTrainer.__init__.
    torch.manual_seed(42 if IS_SAME_SEED else 42 + index)
    ids = torch.tensor([[10, 11], [20, 21], [30, 31], [40, 41]])
    answers = shuffle_sequence_dict({"completion_ids": ids})["completion_ids"]
    given = {"input_ids": answers}
    broadcast_batch(given, dist.group.WORLD)
    if index == RANKS - 1:
        results.put((answers[:, 0].tolist(), given["input_ids"][:, 0].tolist()))
    dist.barrier()
    dist.destroy_process_group()


def main():
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (f"{folder}/store", results), nprocs=RANKS)
    own, forwarded = results.get()
    print(f"expected logits of rows {own}, whose ids rank 1 picks")
    print(f"got      logits of rows {forwarded}")
    return int(own != forwarded)


if __name__ == "__main__":
    sys.exit(main())
