"""label_smoothing_factor with cp_size > 1: labels are shifted after they are cut

trl 1.16.0. One step of the SFTTrainer on one row. With --control the factor is 0.
Run: torchrun --nproc-per-node 2 labels-smoothed-after-cut.py
"""

import sys

import torch
from accelerate.utils import ParallelismConfig
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.2)
model = LlamaForCausalLM(config).to(torch.bfloat16)
row = torch.randint(1, 64, (8,))
smoothing = 0.0 if "--control" in sys.argv else 0.1
logits = model(input_ids=row[None]).logits[0].float()  # The model by itself, on the CPU.
expected = cross_entropy(logits[:-1], row[1:], label_smoothing=smoothing).item()

options = {"max_length": None, "pad_to_multiple_of": 4, "bf16": False, "fsdp": True}
options |= {"max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
arguments = SFTConfig(
    parallelism_config=ParallelismConfig(cp_size=2),
    fsdp_config={"auto_wrap_policy": "NO_WRAP"},
    label_smoothing_factor=smoothing,
    dataset_kwargs={"skip_prepare_dataset": True},
    **options,
)
words = Tokenizer(WordLevel({str(i): i for i in range(64)}))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")
rows = Dataset.from_dict({"input_ids": [row.tolist()]})
trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
trainer.train()
got = trainer.state.log_history[0]["loss"]
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 0:
    print(f"expected loss {expected:.2f}")
    print(f"got      loss {got:.2f}")
    sys.exit(int(abs(got - expected) > 0.03))
