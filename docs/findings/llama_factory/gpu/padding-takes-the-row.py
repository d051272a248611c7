"""v1 trainer, Ulysses, up to 0.9.5: a micro-batch of one unpacked row whose length cp_size does
not divide loses its attention output

llamafactory 0.9.5 (v1) and flash-attn. A row of 7 tokens, whose positions begin at 1, as the
renderer has them. With --control they begin at 0.
Run: torchrun --nproc-per-node 2 padding-takes-the-row.py
"""

import sys

import torch
from llamafactory.v1.accelerator.interface import Dim, DistributedInterface
from llamafactory.v1.plugins.model_plugins.parallelization import sequence_parallel
from transformers import Qwen3Config, Qwen3ForCausalLM

ranks = DistributedInterface({"cp_size": 2})  # Makes the process group.
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
options = {"use_cache": False, "initializer_range": 0.1}
config = Qwen3Config(**sizes, **heads, **options, attn_implementation="flash_attention_2")
model = Qwen3ForCausalLM(config).to("cuda", torch.bfloat16)
tokens = torch.arange(7, device="cuda")[None]
batch = {"input_ids": tokens, "position_ids": tokens + (0 if "--control" in sys.argv else 1)}

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
    sys.exit(int(not off <= 0.1))  # They may be NaN: nothing writes the attention's output.
