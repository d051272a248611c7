"""SequenceTiledCompute.backward with output_reduction "mean" divides its incoming gradient in
place, and so that of losses computed before and added to it

deepspeed 0.19.8. One step at ZeRO 2 of a tiled loss and another one, added to it. With --control
the other loss is computed after the tiled one.
Run: torchrun --nproc-per-node 2 tiled-mean-spoils-other-gradients.py
"""

import sys

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute
from deepspeed.utils import safe_get_full_grad
from torch import distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.router = nn.Linear(8, 16), nn.Linear(8, 4)

    def forward(self, x):
        other = self.router(x).square().mean()
        tiled = sequence_tiled_compute(
            *(lambda x: self.head(x).square().mean(), 6, 3, {"x": x}, {}, "x"),
            *([self.head.weight, self.head.bias], 0, "mean"),
        )
        if "--control" in sys.argv:
            other = self.router(x).square().mean()
        return tiled + other


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model, batches = Model(), torch.randn(2, 1, 6, 8)
model.router(batches).square().mean().backward()  # Plain training on both batches, on the CPU.
expected = model.router.weight.grad.norm().item()
model.zero_grad()

config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
config |= {"zero_allow_untested_optimizer": True}
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config)
engine.backward(engine(batches[rank].to("cuda").requires_grad_()))
got = safe_get_full_grad(model.router.weight).norm().item()
dist.destroy_process_group()
if rank == 0:
    print(f"expected |gradient of the router| {expected:.4f}")
    print(f"got      |gradient of the router| {got:.4f}")
    sys.exit(int(abs(got - expected) > 0.01 * expected))
