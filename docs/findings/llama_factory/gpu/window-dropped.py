"""v1 trainer, Ulysses: cp_size above 1 drops sliding_window, softmax_scale and softcap of the
attention

llamafactory 0.9.5 (v1) and flash-attn. A Mistral whose sliding window is 2 tokens. With --control
it has no window. Run: torchrun --nproc-per-node 2 window-dropped.py
"""

import sys

import torch
from llamafactory.v1.accelerator.interface import Dim, DistributedInterface
from llamafactory.v1.plugins.model_plugins.parallelization import sequence_parallel
from transformers import MistralConfig, MistralForCausalLM

ranks = DistributedInterface({"cp_size": 2})  # Makes the process group.
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.1}
options = {"sliding_window": None if "--control" in sys.argv else 2, "use_cache": False}
config = MistralConfig(**sizes, **heads, **options, attn_implementation="flash_attention_2")
model = MistralForCausalLM(config).to("cuda", torch.bfloat16)
tokens = torch.arange(8, device="cuda")[None]
batch = {"input_ids": tokens, "position_ids": tokens}  # The tokens are the positions, too.

with torch.no_grad():
    expected = model(**batch).logits[:, :4]
    # As the trainer does it.
    sequence_parallel.SequenceParallelModelPlugin("ulysses")(model, {"cp_size": 2})
    mine = sequence_parallel.padding_and_split_data(batch, ranks.get_device_mesh(Dim.CP))
    got = model(**mine).logits

off = (got - expected).abs().max().item()  # On rank 0, which has the first 4 tokens.
ranks.destroy()
if ranks.get_rank() == 0:
    print("expected logits within 0.1 of those of the same model on one GPU")
    print(f"got      logits off by {off:.2f}")
    sys.exit(int(off > 0.1))
