"""transformers: the loss of a causal model is NaN where a micro-batch has no target

transformers 5.23.0, one process, no GPU; nothing of DeepSpeed is used. ForCausalLMLoss takes the
mean over the targets, which is 0 / 0 where there are none. The ALST tutorial of DeepSpeed takes
the loss of each rank from there, so that it is NaN with one rank too.

    python recipe-without-targets-alone.py
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
)
ids = torch.tensor([[1, 2, 3, 4]])
loss = LlamaForCausalLM(config)(input_ids=ids, labels=torch.full_like(ids, -100)).loss.item()
print("expected loss 0.0")
print(f"got      loss {loss}")
sys.exit(loss != 0)
