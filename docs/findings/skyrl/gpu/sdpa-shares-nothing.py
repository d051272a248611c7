"""With flash_attn=false, remove_microbatch_padding=false and sequence_parallel_size > 1 every rank
attends to its own shard only

skyrl 0.4.0 and flash-attn. With --control the two ranks have flash attention.
Run: torchrun --nproc-per-node 2 sdpa-shares-nothing.py
"""

import sys

import torch
from skyrl.backends.skyrl_train.distributed.ulysses import (
    apply_monkey_patch,
    set_ulysses_sequence_parallel_group,
)
from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.1, use_cache=False)
model = LlamaForCausalLM(config).to("cuda")
row = torch.arange(1, 9, device="cuda")[None]


def log_probs(**options):
    with torch.no_grad():
        return HFModelWrapper(model, **options)(row, 7, torch.ones_like(row))[0]


expected = log_probs()  # One rank, sdpa and fp32.

# As a worker does where two ranks share each sequence.
model.to(torch.bfloat16)
flash = "--control" in sys.argv
if flash:
    model.set_attn_implementation("flash_attention_2")
set_ulysses_sequence_parallel_group(dist.group.WORLD)
apply_monkey_patch(model=model, ulysses_sp_size=2)
got = log_probs(use_flash_attention_2=flash, sequence_parallel_size=2)
off = (got - expected).abs().max()
if rank == 0:
    print("expected log probabilities", " ".join(f"{each:6.2f}" for each in expected.tolist()))
    print("got      log probabilities", " ".join(f"{each:6.2f}" for each in got.tolist()))
dist.destroy_process_group()
sys.exit(int(rank == 0 and off > 0.5))
