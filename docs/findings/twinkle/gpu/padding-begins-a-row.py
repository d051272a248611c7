"""flash_attention_2 on a single row padded for sequence parallelism: with transformers 5.15 or
newer its tokens get no attention

twinkle-kit 0.5.1 and flash-attn. With --control the row has six tokens, and needs no padding;
else it has five. Run: torchrun --nproc-per-node 2 padding-begins-a-row.py
"""

import sys
from types import SimpleNamespace

import torch
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from twinkle import DeviceMesh
from twinkle.model.transformers.strategy import sequence_parallel as sharing

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.1, use_cache=False)
model = LlamaForCausalLM(config).to("cuda")
row = torch.arange(1, 7 if "--control" in sys.argv else 6, device="cuda")[None]
inputs = {"input_ids": row, "position_ids": row - 1, "attention_mask": torch.ones_like(row)}

with torch.no_grad():
    expected = model(**inputs).logits  # One rank, sdpa and fp32.

    # As TransformersModel does where two ranks share each sequence.
    model.to(torch.bfloat16).set_attn_implementation("flash_attention_2")
    mesh = DeviceMesh.from_sizes(dp_size=2, ulysses_size=2)
    strategy = sharing.SequenceParallelStrategy(mesh)
    sharing.sequence_parallel.prepare(2, model, SimpleNamespace(pad_token_id=0), mesh)
    outputs = model(**strategy.preprocess_inputs(inputs))
    got = strategy.postprocess_outputs(outputs)["logits"]
# Attention that was not written is whatever was in that memory, perhaps NaN.
off = (got - expected).abs().max().item()
if rank == 0:
    print(f"expected logits within 0.5 of those of one rank, which reach {expected.max():.2f}")
    print(f"got      logits off by {off:.3f}")
dist.destroy_process_group()
sys.exit(int(rank == 0 and not off < 0.5))
