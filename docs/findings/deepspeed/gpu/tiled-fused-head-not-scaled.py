"""TiledFusedLogitsLoss: gradient accumulation, a loss scale, or a division after it do not reach
the gradients of compute_params

deepspeed 0.19.8. One step at ZeRO 2 of two micro-batches on each GPU. With --control it has one.
Run: torchrun --nproc-per-node 2 tiled-fused-head-not-scaled.py
"""

import sys

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss
from deepspeed.utils import safe_get_full_grad
from torch import distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def tile(self, x, y):
        return (self.head(x) - y).square().mean()

    def forward(self, x, y):
        shards, given = 3, (Model.tile, self, self.body(x), y, None)
        return TiledFusedLogitsLoss.apply(*given, shards, list(self.head.parameters()), "mean")


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
micro_batches = 1 if "--control" in sys.argv else 2
model, (x, y) = Model(), torch.randn(2, 2, micro_batches, 1, 6, 8)
model.tile(model.body(x), y).backward()  # Plain training on all micro-batches, on the CPU.
weights = model.body.weight, model.head.weight
expected = [weight.grad.norm().item() for weight in weights]
model.zero_grad()

config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micro_batches}
config |= {"zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config)
for step in range(micro_batches):
    engine.backward(engine(x[rank, step].to("cuda"), y[rank, step].to("cuda")))
    if step + 1 < micro_batches:
        engine.step()
got = [safe_get_full_grad(weight).norm().item() for weight in weights]
dist.destroy_process_group()
if rank == 0:
    print("expected |gradient of body| {:.4f}, |gradient of head| {:.4f}".format(*expected))
    print("got      |gradient of body| {:.4f}, |gradient of head| {:.4f}".format(*got))
    sys.exit(int(abs(got[1] - expected[1]) > 0.01 * expected[1]))
