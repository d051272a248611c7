"""UlyssesSPAttentionHF: with sdpa or flex_attention a model's sliding window is lost without an
error

deepspeed 0.19.8 and transformers. A Mistral whose sliding window is 2 tokens, with sdpa. With
--control it has no window. Run: torchrun --nproc-per-node 2 window-dropped.py
"""

import sys

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from torch import distributed as dist
from transformers import MistralConfig, MistralForCausalLM

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
deepspeed.init_distributed()
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.1}
window = None if "--control" in sys.argv else 2
config = MistralConfig(**sizes, **heads, sliding_window=window, use_cache=False)
model = MistralForCausalLM(config).to("cuda")
tokens = torch.arange(8, device="cuda")[None]
with torch.no_grad():
    expected = model(input_ids=tokens, position_ids=tokens).logits
    UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", 2, micro_batch_size=1)
    mine = tokens.chunk(2, dim=1)[rank]  # The tokens are the positions, too.
    got = model(input_ids=mine, position_ids=mine).logits

off = (got - expected.chunk(2, dim=1)[rank]).abs().max()
dist.all_reduce(off, dist.ReduceOp.MAX)
dist.destroy_process_group()
if rank == 0:
    print("expected logits within 0.01 of those of the same model on one GPU")
    print(f"got      logits off by {off:.2f}")
    sys.exit(int(off > 0.01))
