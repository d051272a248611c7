"""RewardTrainer should refuse cp_size > 1: each rank takes its reward from its own part of the
row

trl 1.16.0. One step of the RewardTrainer on a pair of rows. With --control each GPU has whole rows
(dp_shard_size=2). Run: torchrun --nproc-per-node 2 reward-of-each-shard.py
"""

import sys

import torch
from accelerate.utils import ParallelismConfig
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import distributed as dist
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import RewardConfig, RewardTrainer

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.1, num_labels=1)
config.pad_token_id = 0
model = LlamaForSequenceClassification(config).to(torch.bfloat16)
chosen, rejected = rows = torch.randint(1, 64, (2, 16))
rewards = model(input_ids=rows).logits.float()  # The model by itself, on the CPU.
expected = -logsigmoid(rewards[0] - rewards[1]).item()

how = "dp_shard_size" if "--control" in sys.argv else "cp_size"
options = {"max_length": None, "pad_to_multiple_of": 4, "bf16": False, "fsdp": True}
options |= {"max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
arguments = RewardConfig(
    parallelism_config=ParallelismConfig(**{how: 2}),
    fsdp_config={"auto_wrap_policy": "NO_WRAP"},
    per_device_train_batch_size=1,
    **options,
)
words = Tokenizer(WordLevel({str(i): i for i in range(64)}))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")
pair = {"chosen_ids": chosen.tolist(), "rejected_ids": rejected.tolist()}
dataset = Dataset.from_list([pair, pair])
trainer = RewardTrainer(model, arguments, train_dataset=dataset, processing_class=tokenizer)
trainer.train()
got = trainer.state.log_history[0]["loss"]
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 0:
    print(f"expected loss {expected:.2f}")
    print(f"got      loss {got:.2f}")
    sys.exit(int(abs(got - expected) > 0.03))
