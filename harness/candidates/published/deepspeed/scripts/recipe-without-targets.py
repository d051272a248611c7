"""ALST tutorial: the loss is NaN where a rank has no target.

DeepSpeed 0.19.8, two ranks on CPU. "Loss averaging" of the tutorial multiplies the mean of each
rank by its number of targets. On a rank that has only a prompt or padding the mean is NaN, and NaN
times 0 is NaN: so is the loss of all ranks. deepspeed_sp_compute_loss of transformers leaves such
ranks out.

    python recipe-without-targets.py
"""

import sys
import tempfile

import torch
import torch.distributed.nn
from torch import Tensor
from torch.distributed import destroy_process_group, group, init_process_group
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

SP, VOCAB = 2, 16
# The first half of the row is a prompt, and the first rank has that half.
SHIFT_LABELS = torch.tensor([[-100, -100, -100, 4, 5, 6]])


def logits() -> Tensor:
    return torch.randn(1, 6, VOCAB, generator=torch.Generator().manual_seed(0))


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    """What `model.loss_function` of transformers gives."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def rank_main(rank: int, folder: str) -> None:
    init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=SP)
    sp_group, sp_world_size = group.WORLD, SP
    shift_labels = SHIFT_LABELS.chunk(SP, dim=1)[rank]
    loss = mean(logits().chunk(SP, dim=1)[rank], shift_labels)

    # From here on as in docs/_tutorials/ulysses-alst-sequence-parallelism.md, 0.19.8.
    losses_per_rank = torch.distributed.nn.functional.all_gather(loss, group=sp_group)
    good_tokens = (shift_labels != -100).view(-1).sum()
    good_tokens_per_rank = torch.distributed.nn.functional.all_gather(good_tokens, group=sp_group)
    total_loss = sum(
        losses_per_rank[rank] * good_tokens_per_rank[rank] for rank in range(sp_world_size)
    )
    total_good_tokens = sum(good_tokens_per_rank)
    loss = total_loss / max(total_good_tokens, 1)

    if rank == 0:
        torch.save(loss.detach(), f"{folder}/loss.pt")
    destroy_process_group()


def main() -> int:
    expected = mean(logits(), SHIFT_LABELS).item()
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (folder,), nprocs=SP)
        got = torch.load(f"{folder}/loss.pt").item()
    print(f"expected loss {expected:.6f}")
    print(f"got      loss {got:.6f}")
    return int(not abs(expected - got) < 1e-5)


if __name__ == "__main__":
    sys.exit(main())
