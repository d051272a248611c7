"""Trainer with cp_size > 1: rows padded on the left attend to their padding, because every 2D
attention_mask passes the causal check

transformers 5.24.0 and accelerate. One step of the Trainer on a row whose first half is padding.
With --control its second half is. Run: torchrun --nproc-per-node 2 left-padding-attended.py
"""

import sys

import torch
from accelerate.utils import ParallelismConfig
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.1)
model = LlamaForCausalLM(config).to(torch.bfloat16)
padding, row = torch.zeros(1, 32, dtype=torch.int64), torch.randint(1, 64, (1, 32))
halves = [row, padding] if "--control" in sys.argv else [padding, row]
tokens = torch.cat(halves, dim=1)
is_real = tokens > 0
batch = {"input_ids": tokens, "attention_mask": is_real.long()}
batch["labels"] = tokens.where(is_real, -100)
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
    sys.exit(int(abs(got - expected) > 0.02))
