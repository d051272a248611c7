"""AttnType.FA3 computes every block of a ring with causal=False

yunchang 0.6.4, flash-attn, and FlashAttention-3 (on Hopper GPUs) as this release calls it. With
--control the layer has AttnType.FA. Run: torchrun --nproc-per-node 2 fa3-not-causal.py
"""

import sys

import torch
from torch import distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from yunchang import EXTRACT_FUNC_DICT, LongContextAttention, set_seq_parallel_pg
from yunchang.kernels import AttnType

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
set_seq_parallel_pg(1, 2, rank, 2)


def mine(whole):
    return EXTRACT_FUNC_DICT["zigzag"](whole, rank, world_size=2, rd=2, ud=1).contiguous()


whole = torch.randn(3, 1, 8, 2, 64).to("cuda", torch.bfloat16)
kernel = AttnType.FA if "--control" in sys.argv else AttnType.FA3
layer = LongContextAttention(ring_impl_type="zigzag", attn_type=kernel)
out = layer(*map(mine, whole), causal=True)

heads_first = whole.double().transpose(2, 3)
exact = scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
off = (out - mine(exact)).abs().max()
dist.all_reduce(off, dist.ReduceOp.MAX)
if rank == 0:
    print("expected outputs within 0.05 of those of plain causal attention")
    print(f"got      outputs off by {off:.2f}")
dist.destroy_process_group()
sys.exit(int(rank == 0 and off > 0.05))
