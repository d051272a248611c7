"""Multi-token prediction rolls packed rows by their lengths without padding, though tokens lie by
the padded ones.

megatron-core 0.19.2, one process and then two ranks over gloo, no GPU. Two sequences of 5 and 4
tokens are padded to 8 and 4. They are rolled as process_mtp_loss rolls labels: first without
context parallelism, then by each rank for its pieces, as get_batch_on_this_cp_rank cuts them with
Transformer Engine. With --control the padded lengths are also given as those without padding.

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
ROLLED = torch.tensor([[2, 3, 4, 5, 0, 0, 0, 0, 12, 13, 14, 0]])
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


def is_wrong(got: Tensor, expected: Tensor, of: str) -> bool:
    print(f"expected {expected.tolist()}  (the next token of each{of})")
    print(f"got      {got.tolist()}")
    return not got.equal(expected)


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    torch.cuda.current_device = lambda: torch.device("cpu")
    got, _ = roll_tensor(
        pieces(TOKENS, index), cp_group=dist.group.WORLD, packed_seq_params=PACKED
    )
    if index == 0 and is_wrong(got, pieces(ROLLED, 0), " on rank 0 of two"):
        Path(folder, "wrong").touch()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        got, _ = roll_tensor(TOKENS, packed_seq_params=PACKED)
        wrong = is_wrong(got, ROLLED, ", in one process")
        sys.stdout.flush()
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(wrong or Path(folder, "wrong").exists())
