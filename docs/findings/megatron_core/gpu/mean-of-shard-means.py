"""Context parallelism without calculate_per_token_loss: with a loss mask, gradients are those of a
mean of the ranks' means

megatron-core 0.19.2. With --control the last four tokens count, two on each rank; else the last
three. Run: torchrun --nproc-per-node 2 mean-of-shard-means.py
"""

import sys

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
parallel_state.initialize_model_parallel(context_parallel_size=2)


class Model(MegatronModule):
    """The loss of a token is its number times the weight."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self):
        sizes = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
        super().__init__(TransformerConfig(**sizes, context_parallel_size=2))
        self.weight = torch.nn.Parameter(torch.ones((), device="cuda"))

    def set_input_tensor(self, _): ...  # No stage is before this one.


def forward_step(_, model):
    batch = get_batch_on_this_cp_rank(dict(row), is_hybrid_cp=False, cp_group=dist.group.WORLD)
    mask = batch["loss_mask"]

    def loss_func(losses):  # As in pretrain_gpt.py.
        return (losses * mask).sum(), mask.sum().int(), {}

    return model.weight * batch["numbers"], loss_func


places = torch.arange(1.0, 9.0, device="cuda")[None]
row = {"numbers": places, "loss_mask": (places > (4 if "--control" in sys.argv else 5)).float()}
model = Model()
options = {"num_microbatches": 1, "seq_length": 8, "micro_batch_size": 1, "forward_only": False}
train = get_forward_backward_func()
train(forward_step_func=forward_step, data_iterator=None, model=model, **options)
# As DistributedDataParallel averages gradients.
dist.all_reduce(model.weight.grad)
got = model.weight.grad.item() / 2
expected = ((row["numbers"] * row["loss_mask"]).sum() / row["loss_mask"].sum()).item()
if rank == 0:
    print(f"expected gradient {expected:.4f}, that of the mean over all targets")
    print(f"got      gradient {got:.4f}, with context_parallel_size 2")
dist.destroy_process_group()
sys.exit(int(rank == 0 and abs(got - expected) > 1e-4))
