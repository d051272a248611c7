"""TiledMLP under ZeRO: gradients are not reduced where torch.chunk gives fewer tiles than shards

deepspeed 0.19.8. One step at ZeRO 3 on 4 tokens for each GPU, with 3 shards, of which torch.chunk
makes 2 tiles. With --control there are 2 shards.
Run: torchrun --nproc-per-node 2 tiled-mlp-never-reduced.py
"""

import sys

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP
from deepspeed.utils import safe_get_full_grad
from torch import distributed as dist
from torch import nn

SHARDS = 2 if "--control" in sys.argv else 3


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def plain(self, x):
        return self.down(self.up(x).relu())

    def forward(self, x):
        return TiledMLP.apply(MLP.plain, self, x, SHARDS, [self.up.weight, self.down.weight])


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model, batches = MLP(), torch.randn(2, 1, 4, 8)
model.plain(batches).square().mean().backward()  # Plain training on both batches, on the CPU.
expected = model.down.weight.grad.clone()
model.zero_grad()

config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
config |= {"zero_allow_untested_optimizer": True}
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config)
engine.backward(engine(batches[rank].to("cuda").requires_grad_()).square().mean())
got = safe_get_full_grad(engine.module.down.weight)
dist.destroy_process_group()
if rank == 0:
    print(f"expected |gradient of down| {expected.norm():.4f}")
    print(f"got      |gradient of down| {got.norm():.4f}")
    sys.exit(int((got - expected.to("cuda")).norm() > 0.01 * expected.norm()))
