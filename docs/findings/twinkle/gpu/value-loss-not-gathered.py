"""PPOValueLoss with ulysses_size > 1 compares each value with the old value and return of another
token, because gather_loss_tensors does not gather values

twinkle-kit 0.5.1. With --control ulysses_size is 1, and each rank has the whole row.
Run: torchrun --nproc-per-node 2 value-loss-not-gathered.py
"""

import sys
from types import SimpleNamespace

import torch
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from twinkle import DeviceMesh
from twinkle.loss import PPOValueLoss
from twinkle.model.transformers.strategy import sequence_parallel as sharing

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
# The head of TransformersValueModel.
model.set_output_embeddings(torch.nn.Linear(128, 1))
model, row = model.to("cuda"), torch.arange(1, 9, device="cuda")[None]
# Six of the eight tokens predict an answer, three of them on each of two ranks.
labels = row.roll(-1, 1).where((row > 1) & (row < 8), -100)
inputs = {"input_ids": row, "position_ids": row - 1, "labels": labels}
given = {"old_values": [[0.0, 0.1, 0.2, 0.3, 0.4, 0.5]], "returns": [[1.0, 0, 2, 0, 3, 0]]}
loss, size = PPOValueLoss(), 1 if "--control" in sys.argv else 2
mesh = DeviceMesh.from_sizes(dp_size=2, ulysses_size=size)


def forward(inputs):
    outputs = model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"])
    return {"values": outputs.logits.squeeze(-1)}


with torch.no_grad():
    expected = loss(inputs, forward(inputs), **given)["loss"].item()
    strategy = sharing.SequenceParallelStrategy(mesh)
    if size > 1:
        # As TransformersModel does where two ranks share each sequence.
        sharing.sequence_parallel.prepare(2, model, SimpleNamespace(pad_token_id=0), mesh)
    inputs = strategy.preprocess_inputs(inputs)
    got = loss(*strategy.gather_loss_tensors(inputs, forward(inputs)), **given)["loss"] / 2
# Gradients are averaged over ranks, and so is the loss that is logged.
dist.all_reduce(got)
if rank == 0:
    print(f"expected loss {expected:.4f}, by the loss itself on the whole row")
    print(f"got      loss {got:.4f}, with ulysses_size={size}")
dist.destroy_process_group()
sys.exit(int(rank == 0 and abs(got - expected) > 1e-3))
