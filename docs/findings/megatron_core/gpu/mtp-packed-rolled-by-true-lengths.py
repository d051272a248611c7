"""Multi-token prediction rolls packed rows by their lengths without padding, though tokens lie by
the padded ones

megatron-core 0.19.2. With --control the padded lengths are also given as those without padding.
Run: torchrun --nproc-per-node 2 mtp-packed-rolled-by-true-lengths.py
"""

import sys

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.multi_token_prediction import roll_tensor
from torch import distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)

# Sequences of 5 and 4 tokens, padded to 8 and 4 as two ranks need them.
tokens = torch.tensor([[1, 2, 3, 4, 5, 0, 0, 0, 11, 12, 13, 14]], device="cuda")
after = torch.tensor([[2, 3, 4, 5, 0, 0, 0, 0, 12, 13, 14, 0]], device="cuda")
padded = torch.tensor([0, 8, 12], dtype=torch.int32, device="cuda")
true = torch.tensor([0, 5, 9], dtype=torch.int32, device="cuda")
packed = PackedSeqParams(
    qkv_format="thd",
    cu_seqlens_q=padded if "--control" in sys.argv else true,
    cu_seqlens_kv=padded if "--control" in sys.argv else true,
    cu_seqlens_q_padded=padded,
    cu_seqlens_kv_padded=padded,
)


def mine(row):
    """A piece from the front of each sequence, and the one that mirrors it."""
    sequences = row.split([8, 4], 1)
    return torch.cat([each.chunk(4, 1)[at] for each in sequences for at in (rank, 3 - rank)], 1)


# As process_mtp_loss rolls labels.
got, _ = roll_tensor(mine(tokens), cp_group=dist.group.WORLD, packed_seq_params=packed)
if rank == 0:
    print("expected", mine(after).tolist(), "(the next token of each on rank 0)")
    print("got     ", got.tolist())
wrong = torch.tensor(int(not got.equal(mine(after))), device="cuda")
dist.all_reduce(wrong)
dist.destroy_process_group()
sys.exit(int(rank == 0 and wrong.item() > 0))
