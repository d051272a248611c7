"""ring-flash-attn's adapter, which OpenRLHF uses for ring_attn_size above 1, makes a sliding
window one token too wide

openrlhf 0.11.2, ring-flash-attn 0.1.8 and flash-attn. With --control transformers' own function
attends to the whole row. Run: torchrun --nproc-per-node 2 window-one-too-wide.py
"""

import sys
from types import SimpleNamespace

import torch
from openrlhf.models import ring_attn_utils
from torch import distributed as dist
from transformers import MistralConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

dist.init_process_group("nccl")
rank, group = dist.get_rank(), dist.group.WORLD
torch.cuda.set_device(rank)
torch.manual_seed(0)
tokens, window = 8, 2
# The values are unit vectors, so an output holds the weights of the keys.
q, k = torch.randn(2, 1, 1, tokens, 64).to("cuda", torch.bfloat16)
states = [q, k, torch.eye(tokens, 64, dtype=torch.bfloat16, device="cuda").expand_as(k)]

if "--control" not in sys.argv:
    # As DeepspeedStrategy.setup_ring_attn does, and Actor.forward for each batch.
    ring_attn_utils.set_ring_attn_group(group)
    ring_attn_utils.patch_transformers_for_ring_flash_attn()
    from ring_flash_attn import substitute_hf_flash_attn  # Needs the patch above.

    substitute_hf_flash_attn(group, 1)
    ends = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    ring_attn_utils.update_ring_attn_params(ends)
    states = [state.chunk(2, 2)[rank] for state in states]

config = MistralConfig(attn_implementation="flash_attention_2")
layer = SimpleNamespace(config=config, is_causal=True)
attend = ALL_ATTENTION_FUNCTIONS["flash_attention_2"]
out, _ = attend(layer, *states, None, sliding_window=window)
got = (out[0, -1, 0] > 0).sum()
dist.broadcast(got, 1)  # The last token is on the second rank.
if rank == 0:
    print(f"expected {window} keys that the last of {tokens} tokens attends to")
    print(f"got      {got.item()}, with a window of {window}")
dist.destroy_process_group()
sys.exit(int(rank == 0 and got.item() != window))
