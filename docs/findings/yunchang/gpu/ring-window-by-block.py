"""LongContextAttention with a ring of several ranks applies window_size inside each block of keys,
not in the row

yunchang 0.6.4 and flash-attn. With --control the two ranks share heads, by Ulysses, and a ring has
one rank. Run: torchrun --nproc-per-node 2 ring-window-by-block.py
"""

import sys

import torch
from torch import distributed as dist
from yunchang import EXTRACT_FUNC_DICT, LongContextAttention, set_seq_parallel_pg

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
ring, ulysses = (1, 2) if "--control" in sys.argv else (2, 1)
set_seq_parallel_pg(ulysses, ring, rank, 2)


def mine(whole):
    return EXTRACT_FUNC_DICT["zigzag"](whole, rank, world_size=2, rd=ring, ud=ulysses)


# Eight tokens and two heads. The values are unit vectors, so outputs hold the weights of the keys.
q, k = torch.randn(2, 1, 8, 2, 64).to("cuda", torch.bfloat16)
v = torch.eye(8, 64, dtype=torch.bfloat16, device="cuda")[None, :, None].expand_as(k)
states = [mine(state).contiguous() for state in (q, k, v)]
layer = LongContextAttention(ring_impl_type="zigzag")
out = layer(*states, causal=True, window_size=(1, 0))

got = [(weights > 0).nonzero().flatten().tolist() for weights in out[0, :, 0]]
expected = [list(range(max(i - 1, 0), i + 1)) for i in mine(torch.arange(8)[None])[0].tolist()]
wrong = torch.tensor(int(got != expected), device="cuda")
dist.all_reduce(wrong)
if rank == 0:
    print("keys that each token of the first rank attends to, with a window of one key before it")
    print("expected", *expected)
    print("got     ", *got)
dist.destroy_process_group()
sys.exit(int(rank == 0 and wrong.item() > 0))
