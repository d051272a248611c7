"""ChunkedCrossEntropyLoss with ulysses_size > 1 trains on the mean of the ranks' means, because
its logits are not gathered

twinkle-kit 0.5.1. With --control both ranks have four targets; else the second rank has one.
Run: torchrun --nproc-per-node 2 chunked-loss-mean-of-ranks.py
"""

import sys
from types import SimpleNamespace

import torch
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from twinkle import DeviceMesh
from twinkle.loss import ChunkedCrossEntropyLoss
from twinkle.model.transformers.strategy import sequence_parallel as sharing

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.3)
model = LlamaForCausalLM(config).to("cuda")
row = torch.arange(1, 9, device="cuda")[None]
labels = row.roll(-1, 1)
labels[:, 8 if "--control" in sys.argv else 5 :] = -100
inputs = {"input_ids": row, "position_ids": row - 1, "labels": labels}
loss = ChunkedCrossEntropyLoss(chunk_size=4)


def forward(inputs):
    return model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"])


with torch.no_grad():
    expected = loss(inputs, forward(inputs))["loss"].item()

    # As TransformersModel does where two ranks share each sequence.
    mesh = DeviceMesh.from_sizes(dp_size=2, ulysses_size=2)
    strategy = sharing.SequenceParallelStrategy(mesh)
    sharing.sequence_parallel.prepare(2, model, SimpleNamespace(pad_token_id=0), mesh)
    inputs = strategy.preprocess_inputs(inputs)
    got = loss(*strategy.gather_loss_tensors(inputs, forward(inputs)))["loss"]
# Gradients are averaged over ranks, and so is the loss that is logged.
dist.all_reduce(got)
got = got.item() / 2
if rank == 0:
    print(f"expected loss {expected:.4f}, of one rank")
    print(f"got      loss {got:.4f}, of two that share the sequence")
dist.destroy_process_group()
sys.exit(int(rank == 0 and abs(got - expected) > 1e-3))
