"""With sp_ulysses_degree above 1 losses of the last rank are dropped where ranks hold unequal
numbers of rows

lmms_engine 0.1.4, liger-kernel and flash-attn. One GPU has two rows of 2 tokens, the other a
row of 4. With --control each has two rows of 2.
Run: torchrun --nproc-per-node 2 losses-unpadded-at-the-end.py
"""

import sys

import torch
from lmms_engine.models.monkey_patch import MONKEY_PATCHER
from lmms_engine.parallel.sequence_parallel.ulysses import set_ulysses_sequence_parallel_group
from torch import distributed as dist
from transformers import Qwen3Config, Qwen3ForCausalLM

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
options = {"attn_implementation": "flash_attention_2", "initializer_range": 0.2}
config = Qwen3Config(**sizes, **heads, **options)
model = Qwen3ForCausalLM(config).to("cuda", torch.bfloat16)
rows = [[1, 2, 0, 0], [3, 4, 0, 0], [5, 6, 7, 8]]
if "--control" in sys.argv:
    rows = [[1, 2], [3, 4], [5, 6], [7, 8]]
tokens = torch.tensor(rows, device="cuda")
inputs = {"input_ids": tokens, "attention_mask": (tokens > 0).long()}
inputs["labels"] = tokens.where((tokens > 0) & (tokens % 2 == 0), -100)
expected = model(**inputs).loss.item()  # The model before the patch.

# As the library's runner does it, without the other kernels of Liger.
set_ulysses_sequence_parallel_group(dist.group.WORLD)
other = {"rope": False, "rms_norm": False, "swiglu": False}
MONKEY_PATCHER.apply_monkey_patch("qwen3", ["liger"], use_rmpad=True, **other)
got = model.train()(**inputs).loss.item()
set_ulysses_sequence_parallel_group(None)
dist.destroy_process_group()
if rank == 0:
    print(f"expected loss {expected:.2f}")
    print(f"got      loss {got:.2f}")
    sys.exit(int(abs(got - expected) > 0.05))
