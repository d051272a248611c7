"""FSDP with context parallelism: with attn_impl sdpa, eager or flex_attention every rank of a text
model attends to its own shard only

areal 1.0.4 and flash-attn. attn_impl is sdpa; with --control it is flash_attention_2.
Run: torchrun --nproc-per-node 2 stays-local.py
"""

import sys

import torch
from areal.models.fsdp import ulysses
from areal.models.transformers.ulyssess_patch import apply_monkey_patch
from torch import distributed as dist
from transformers import Qwen2Config, Qwen2ForCausalLM

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.1}
attention = "flash_attention_2" if "--control" in sys.argv else "sdpa"
config = Qwen2Config(**sizes, **heads, attn_implementation=attention)
model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
tokens = torch.arange(8, device="cuda")[None]  # They are the positions, too.
masks = {"full_attention": None, "sliding_attention": None}  # As the engine hands them over.

with torch.no_grad():
    whole = model(input_ids=tokens, position_ids=tokens, attention_mask=masks).logits
    expected = whole.chunk(2, dim=1)[rank]
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    apply_monkey_patch(model, ulysses_sp_size=2)
    mine, positions, _ = ulysses.ulysses_pad_and_slice_inputs(tokens, tokens, sp_size=2)
    got = model(input_ids=mine, position_ids=positions, attention_mask=masks).logits

off = (got - expected).abs().max().float()
dist.all_reduce(off, dist.ReduceOp.MAX)
ulysses.set_ulysses_sequence_parallel_group(None)
dist.destroy_process_group()
if rank == 0:
    print("expected logits within 0.1 of those of the same model on one GPU")
    print(f"got      logits off by {off:.2f}")
    sys.exit(int(off > 0.1))
