"""GRPO with context parallelism: other tokens' log-probabilities if the length is odd.

axolotl 0.19.0. A prompt of two tokens and three that were generated: TRL asks for four logits,
drops the last and takes the three before. Two ranks on a CPU; the logits are the numbers of their
tokens.

    python logits-kept-before-padding.py
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

RANKS = 2


def all_gather(pieces: list[torch.Tensor], mine: torch.Tensor, **_: Any) -> None:
    """NCCL takes pieces of unlike sizes, gloo does not."""
    for rank, piece in enumerate(pieces):
        if rank == dist.get_rank():
            piece.copy_(mine)
        dist.broadcast(piece, rank)


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    from axolotl.utils.ctx_managers import sequence_parallel as sharing
    from axolotl.utils.schemas.enums import RingAttnFunc

    batch = {
        "input_ids": torch.arange(5)[None],
        "logits_to_keep": 4,
    }
    dist.all_gather = all_gather
    cut, *_ = sharing.apply_sequence_parallelism(batch, rank, RANKS, 1, RingAttnFunc.BATCH_RING)
    kept = cut["position_ids"][:, cut["logits_to_keep"]]
    logits = sharing.AllGatherWithGrad.apply(kept[..., None].float(), dist.group.WORLD)
    if rank == 0:
        # As in GRPOTrainer._get_per_token_logps_and_entropies.
        queue.put(logits[:, :-1][:, -3:, 0].flatten().int().tolist())
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = [1, 2, 3]
    print("tokens whose logits are taken for what follows the prompt")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
