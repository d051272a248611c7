"""ChunkedCrossEntropyLoss(reduction='sum') with ulysses_size > 1: each rank without targets adds
one token to the count

twinkle-kit 0.5.1. With --control the second rank has a target; else it has none.
Run: torchrun --nproc-per-node 2 chunked-loss-counts-empty-ranks.py
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
labels[:, 5 if "--control" in sys.argv else 4 :] = -100
inputs = {"input_ids": row, "position_ids": row - 1, "labels": labels}
loss = ChunkedCrossEntropyLoss(chunk_size=4, reduction="sum")


def forward(inputs):
    return model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"])


with torch.no_grad():
    alone = loss(inputs, forward(inputs))
    expected = (alone["loss"] / alone["num_tokens"]).item()

    # As TransformersModel does where two ranks share each sequence.
    mesh = DeviceMesh.from_sizes(dp_size=2, ulysses_size=2)
    strategy = sharing.SequenceParallelStrategy(mesh)
    sharing.sequence_parallel.prepare(2, model, SimpleNamespace(pad_token_id=0), mesh)
    inputs = strategy.preprocess_inputs(inputs)
    shared = loss(*strategy.gather_loss_tensors(inputs, forward(inputs)))
# Gradients are divided by the counts of all ranks, and so is the loss that is logged.
sums = torch.stack([shared["loss"], shared["num_tokens"]])
dist.all_reduce(sums)
got = (sums[0] / sums[1]).item()
if rank == 0:
    print(f"expected loss {expected:.4f}, of one rank")
    print(f"got      loss {got:.4f}, of two that share the sequence")
dist.destroy_process_group()
sys.exit(int(rank == 0 and abs(got - expected) > 1e-3))
