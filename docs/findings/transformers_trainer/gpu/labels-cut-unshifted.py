"""compute_loss_func with cp_size > 1 gets labels that were cut before they are shifted, and no
shift_labels

transformers 5.24.0 and accelerate. One step of the Trainer, with the model's own loss as
compute_loss_func. With --control there is no compute_loss_func.
Run: torchrun --nproc-per-node 2 labels-cut-unshifted.py
"""

import sys

import torch
from accelerate.utils import ParallelismConfig
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.loss.loss_utils import ForCausalLMLoss


def causal(outputs, labels, num_items_in_batch):
    return ForCausalLMLoss(outputs.logits, labels, 64, num_items_in_batch)


torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.2)
model = LlamaForCausalLM(config).to(torch.bfloat16)
tokens = torch.randint(64, (1, 16))
batch = {"input_ids": tokens, "labels": tokens}
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
given = {} if "--control" in sys.argv else {"compute_loss_func": causal}
given |= {"data_collator": lambda _: batch, "train_dataset": [0]}
trainer = Trainer(model, arguments, **given)
trainer.train()
got = trainer.state.log_history[0]["loss"]
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 0:
    print(f"expected loss {expected:.2f}")
    print(f"got      loss {got:.2f}")
    sys.exit(int(abs(got - expected) > 0.03))
