"""label_smoothing_factor with FSDP2: labels are not shifted, because fully_shard renames the class
to FSDPLlamaForCausalLM

transformers 5.24.0 and accelerate. One step of the Trainer with FSDP2; both GPUs have the same
row. With --control the factor is 0. Run: torchrun --nproc-per-node 2 smoothing-not-shifted.py
"""

import sys

import torch
from accelerate.utils import ParallelismConfig
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.2)
model = LlamaForCausalLM(config).to(torch.bfloat16)
tokens = torch.randint(64, (1, 16))
batch = {"input_ids": tokens, "labels": tokens}
smoothing = 0.0 if "--control" in sys.argv else 0.1
logits = model(input_ids=tokens).logits.float()  # The model by itself, on the CPU.
expected = cross_entropy(logits[0, :-1], tokens[0, 1:], label_smoothing=smoothing).item()

arguments = TrainingArguments(
    parallelism_config=ParallelismConfig(dp_shard_size=2),
    fsdp=True,
    fsdp_config={"auto_wrap_policy": "NO_WRAP"},
    label_smoothing_factor=smoothing,
    max_steps=1,
    logging_steps=1,
    save_strategy="no",
    remove_unused_columns=False,
)
trainer = Trainer(model, arguments, data_collator=lambda _: batch, train_dataset=[0, 0])
trainer.train()
got = trainer.state.log_history[0]["loss"]
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 0:
    print(f"expected loss {expected:.2f}")
    print(f"got      loss {got:.2f}")
    sys.exit(int(abs(got - expected) > 0.03))
