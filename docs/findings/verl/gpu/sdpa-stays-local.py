"""FSDP: with ulysses_sequence_parallel_size above 1 and attn_implementation sdpa or eager every
rank attends to its own shard only

verl 0.9.1 and flash-attn. With --control the model has flash_attention_2.
Run: torchrun --nproc-per-node 2 sdpa-stays-local.py
"""

import sys

import torch
from torch import distributed as dist
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils import ulysses

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
config = Qwen2Config(**sizes, **heads, initializer_range=0.1, attn_implementation="sdpa")
model = Qwen2ForCausalLM(config).to("cuda")
row = torch.arange(1, 9, device="cuda")[None]

with torch.no_grad():
    expected = model(input_ids=row, use_cache=False).logits  # One rank, sdpa and fp32.

    # As FSDPEngine does where two ranks share each sequence.
    model.to(torch.bfloat16)
    if "--control" in sys.argv:
        model.set_attn_implementation("flash_attention_2")
    apply_monkey_patch(model, ulysses_sp_size=2)
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    mine, places, exact = (
        ulysses.slice_input_tensor(whole, dim=1) for whole in (row, row - 1, expected)
    )
    got = model(input_ids=mine, position_ids=places, use_cache=False).logits

off = (got - exact).abs().max()
dist.all_reduce(off, dist.ReduceOp.MAX)
if rank == 0:
    print(f"expected logits within 0.5 of those of one rank, which reach {expected.max():.2f}")
    print(f"got      logits off by {off:.2f}")
dist.destroy_process_group()
sys.exit(int(rank == 0 and off > 0.5))
