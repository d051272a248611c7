"""Where sequence_parallel_size does not divide the kv heads, gradients are wrong: the ring's
backward gives each block its own out and lse, not the final ones

ms-swift 4.6.0 and flash-attn. With --control only the first two tokens have a gradient; one block
holds all that they attend to. Run: torchrun --nproc-per-node 2 ring-drops-lse-gradient.py
"""

import sys

import torch
from swift.sequence_parallel.zigzag_ring_attn import zigzag_ring_flash_attn_varlen_func
from torch import distributed as dist
from torch.nn.functional import scaled_dot_product_attention

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
whole = torch.randn(4, 1, 8, 2, 64).to("cuda", torch.bfloat16)
whole[-1, :, 2 if "--control" in sys.argv else 8 :] = 0
mine = [[0, 1, 6, 7], [2, 3, 4, 5]][rank]  # A zigzag: the outer pieces, or the inner.

*ring, dout = whole[:, :, mine]
ring = [state.requires_grad_() for state in ring]
ends = torch.tensor([0, 8], dtype=torch.int32, device="cuda")
zigzag_ring_flash_attn_varlen_func(
    *ring, cu_seqlens=ends, max_seqlen=8, causal=True, group=dist.group.WORLD
).backward(dout)

*plain, dout = whole.double()
plain = [state.requires_grad_() for state in plain]
heads_first = [state.transpose(1, 2) for state in plain]
scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2).backward(dout)

pairs = zip(ring, plain, strict=True)
off = torch.stack([(got.grad - exact.grad[:, mine]).abs().max() for got, exact in pairs])
dist.all_reduce(off, dist.ReduceOp.MAX)
if rank == 0:
    print("expected gradients of q, k, v within 0.05 of those of plain attention")
    print("got      gradients of q, k, v off by", ", ".join(f"{each:.2f}" for each in off))
dist.destroy_process_group()
sys.exit(int(rank == 0 and off.max() > 0.05))
