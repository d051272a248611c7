"""Trainer should refuse packed batches (position_ids that begin again) with cp_size > 1: rows
attend to each other

transformers 5.24.0 and accelerate. One step of the Trainer on two packed rows. With --control
positions do not begin again, so they are one row.
Run: torchrun --nproc-per-node 2 packed-rows-attended.py
"""

import sys

import torch
from accelerate.utils import ParallelismConfig
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.2, use_cache=False)
model = LlamaForCausalLM(config).to(torch.bfloat16)
tokens = torch.randint(64, (1, 16))
second = 0 if "--control" in sys.argv else 6  # Where positions begin again.
positions = torch.cat([torch.arange(second), torch.arange(16 - second)])[None]
batch = {"input_ids": tokens, "position_ids": positions, "labels": tokens.clone()}
batch["labels"][:, second] = -100
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
