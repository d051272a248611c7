"""Multi-token prediction with context parallelism: its gradients and its log are means of the
ranks' means

megatron-core 0.19.2. With --control each rank has one target, before and after they are rolled.
Run: torchrun --nproc-per-node 2 mtp-mean-of-shard-means.py
"""

import sys

import torch
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.multi_token_prediction import process_mtp_loss
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
sizes = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
config = TransformerConfig(**sizes, mtp_num_layers=1, mtp_loss_scaling_factor=1.0)

# At the further depth the loss of a token is its number times the weight.
numbers = torch.arange(1.0, 9.0, device="cuda")[None]
mask = torch.zeros_like(numbers)
mask[:, [1, 3] if "--control" in sys.argv else [5, 6, 7]] = 1
weight = torch.ones((), device="cuda", requires_grad=True)
batch = {"numbers": numbers, "loss_mask": mask}
batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=dist.group.WORLD)
ahead = (weight * batch["numbers"]).T[:, :, None]
options = {"output_weight": None, "runtime_gather_output": None, "is_training": False}
# The head is the identity, and the loss what comes out of it.
loss = process_mtp_loss(
    hidden_states=torch.cat((torch.zeros_like(ahead), ahead)),
    labels=torch.zeros_like(batch["loss_mask"]),
    loss_mask=batch["loss_mask"],
    output_layer=lambda hidden, **_: (hidden, None),
    **options,
    compute_language_model_loss=lambda _, logits: logits[:, :, 0].T,
    config=config,
    cp_group=dist.group.WORLD,
)
loss.sum().backward()
dist.all_reduce(weight.grad)
got = weight.grad.item() / 2  # As DistributedDataParallel averages it.
mask = mask.roll(-1, 1)  # Nothing is rolled from the first place to the last.
expected = ((numbers * mask).sum() / mask.sum()).item()
if rank == 0:
    print(f"expected gradient {expected:.4f}, that of the mean over all targets")
    print(f"got      gradient {got:.4f}, with context_parallel_size 2")
dist.destroy_process_group()
sys.exit(int(rank == 0 and abs(got - expected) > 1e-4))
