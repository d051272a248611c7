"""reduce_sequence_parallel_loss (xtuner/model, not XTuner V1): gradients ignore how many targets
each rank has

xtuner 0.2.0. With --control each rank has two of the four targets; else the first has one.
Run: torchrun --nproc-per-node 2 loss-mean-of-means.py
"""

import sys

import torch
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from xtuner.parallel.sequence.reduce_loss import reduce_sequence_parallel_loss

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)

# A row of eight tokens, of which each rank has four.
head = torch.nn.Linear(16, 32).to("cuda")
hidden = torch.randn(8, 16).to("cuda")
labels = torch.tensor([-100, -100, -100, 3, -100, 1, 4, 5], device="cuda")
if "--control" in sys.argv:
    labels = torch.tensor([-100, -100, 1, 3, -100, -100, 4, 5], device="cuda")

exact = cross_entropy(head(hidden), labels)
exact.backward()
expected = head.weight.grad.clone()
head.zero_grad()

# As SupervisedFinetune does; DistributedDataParallel averages gradients over ranks.
shared = DistributedDataParallel(head)
mine, targets = hidden.chunk(2)[rank], labels.chunk(2)[rank]
count = (targets != -100).sum()
loss = reduce_sequence_parallel_loss(cross_entropy(shared(mine), targets), count, dist.group.WORLD)
loss.backward()
off = (head.weight.grad - expected).norm() / expected.norm()
if rank == 0:
    print(f"expected loss {exact:.4f}, its gradient within 0.1% of that of one rank")
    print(f"got      loss {loss:.4f}, its gradient off by {off:.1%}")
dist.destroy_process_group()
sys.exit(int(rank == 0 and off > 1e-3))
