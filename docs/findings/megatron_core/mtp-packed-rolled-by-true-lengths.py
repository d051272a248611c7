"""Multi-token prediction with packed rows and context parallelism rolls by the lengths without
padding, though tokens are cut by the padded ones.

megatron-core 0.19.2, two ranks over gloo, no GPU. Two sequences of 5 and 4 tokens are padded to
8 and 4, as two ranks need them. Each rank takes its pieces, as get_batch_on_this_cp_rank does with
Transformer Engine, and rolls them as process_mtp_loss rolls labels. With --control the padded
lengths are also given as those without padding.

    python mtp-packed-rolled-by-true-lengths.py
"""

import sys
import tempfile
from pathlib import Path

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.multi_token_prediction import roll_tensor
from torch import Tensor, multiprocessing
from torch import distributed as dist

TOKENS = torch.tensor([[1, 2, 3, 4, 5, 0, 0, 0, 11, 12, 13, 14]])
PADDED = torch.tensor([0, 8, 12])
TRUE = PADDED if "--control" in sys.argv else torch.tensor([0, 5, 9])
PACKED = PackedSeqParams(
    qkv_format="thd",
    cu_seqlens_q=TRUE,
    cu_seqlens_kv=TRUE,
    cu_seqlens_q_padded=PADDED,
    cu_seqlens_kv_padded=PADDED,
)


def pieces(whole: Tensor, index: int) -> Tensor:
    """One from the front of each sequence, and the one that mirrors it."""
    sequences = whole.split([8, 4], 1)
    return torch.cat([x.chunk(4, 1)[at] for x in sequences for at in (index, 3 - index)], 1)


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    torch.cuda.current_device = lambda: torch.device("cpu")
    alone = [dist.new_group([each]) for each in range(2)]
    whole = torch.tensor([[2, 3, 4, 5, 0, 0, 0, 0, 12, 13, 14, 0]])
    expected = pieces(whole, index)
    got, _ = roll_tensor(
        pieces(TOKENS, index), cp_group=dist.group.WORLD, packed_seq_params=PACKED
    )
    dist.barrier(alone[index])
    if index == 0:
        print(f"expected {expected.tolist()}  (the next token of each on rank 0)")
        print(f"got      {got.tolist()}")
        Path(folder, "wrong").write_text("" if got.equal(expected) else "1")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(bool(Path(folder, "wrong").read_text()))
