"""cp_size above 1 silently ignores the sliding window of a transformers model

nemo-automodel 0.7.0. With --control the model has no sliding window.
Run: torchrun --nproc-per-node 2 window-dropped.py
"""

import sys

import torch
from nemo_automodel.components.distributed.context_parallel import ContextParallelSharder
from nemo_automodel.components.distributed.context_parallel.utils import (
    attach_context_parallel_hooks,
)
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import MistralConfig, MistralForCausalLM

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
window = None if "--control" in sys.argv else 1
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
config = MistralConfig(**sizes, **heads, initializer_range=0.2, sliding_window=window)
model = MistralForCausalLM(config).to("cuda", torch.bfloat16)


def loss(mesh):
    """As the recipe computes it, summed over ranks."""
    row = torch.arange(1, 9, device="cuda")[None]
    batch = {"input_ids": row, "labels": row + 1, "attention_mask": torch.ones_like(row)}
    context, batch = ContextParallelSharder(model, mesh, batch).shard(batch)
    labels = batch.pop("labels")
    with torch.no_grad(), context():
        return MaskedCrossEntropy()(model(**batch).logits, labels, num_label_tokens=8)


expected = loss(None)
attach_context_parallel_hooks(model)
got = loss(init_device_mesh("cuda", (2,), mesh_dim_names=("cp",)))
dist.all_reduce(got)
if rank == 0:
    print(f"expected {expected:.3f}, the loss of one rank")
    print(f"got      {got:.3f}, the loss with cp_size 2")
dist.destroy_process_group()
sys.exit(int(rank == 0 and (got - expected).abs() > 0.05))
