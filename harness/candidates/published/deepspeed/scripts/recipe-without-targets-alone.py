"""The loss of a causal model is NaN where a micro-batch has no target

transformers 5.23.0, as the ALST tutorial of DeepSpeed 0.19.8 uses it; one process, no GPU. The
mean over no targets is 0 / 0, which also spoils a sum over micro-batches.

    python recipe-without-targets-alone.py
"""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

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
