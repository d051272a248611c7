"""Trainer with cp_size > 1 averages the means of shards where model_accepts_loss_kwargs is False

transformers 5.24.0 and accelerate. One step of the Trainer on a row of 16 tokens with 5 targets.
One GPU has 4 of them, the other 1. With --control the model takes num_items_in_batch.
Run: torchrun --nproc-per-node 2 mean-of-rank-means.py
"""

import sys

import torch
from accelerate.utils import ParallelismConfig
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class SomeForCausalLM(LlamaForCausalLM):
    accepts_loss_kwargs = "--control" in sys.argv  # Some released models have False here.


torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.2)
model = SomeForCausalLM(config).to(torch.bfloat16)
tokens = torch.randint(64, (1, 16))
batch = {"input_ids": tokens, "labels": tokens.clone()}
batch["labels"][:, 6:] = -100
expected = model(**batch).loss.item()  # The model by itself, on the CPU.

arguments = TrainingArguments(
    parallelism_config=ParallelismConfig(cp_size=2),
    fsdp=True,
    fsdp_config={"auto_wrap_policy": "NO_WRAP"},
    max_steps=1,
    logging_steps=1,
    save_strategy="no",
    remove_unused_columns=False,
)
trainer = Trainer(model, arguments, data_collator=lambda _: batch, train_dataset=[0])
trainer.train()
got = trainer.state.log_history[0]["loss"]
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 0:
    print(f"expected loss {expected:.2f}")
    print(f"got      loss {got:.2f}")
    sys.exit(int(abs(got - expected) > 0.03))
