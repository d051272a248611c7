"""Context parallelism without calculate_per_token_loss: with a loss mask, gradients are those of a
mean of the ranks' means.

megatron-core 0.19.2, two ranks over gloo, no GPU. A micro-batch has one row of eight tokens, of
which the last three count; losses are w times a number for each token. The row is cut as
get_batch_on_this_cp_rank cuts it, each rank's loss is what forward_step_calc_loss makes of the
triple that the loss function of pretrain_gpt.py returns, and gradients are averaged over the
ranks, as DistributedDataParallel does (gradient_scaling_factor = 1 / dp_cp). With --control the
last four tokens count, two on each rank.

    python mean-of-shard-means.py
"""

import sys
import tempfile
from pathlib import Path

import torch
from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor, multiprocessing
from torch import distributed as dist

NUMBERS = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
FOURTH = float("--control" in sys.argv)
MASK = torch.tensor([[0.0, 0.0, 0.0, 0.0, FOURTH, 1.0, 1.0, 1.0]])


class Config:
    """What is read of a TransformerConfig."""

    calculate_per_token_loss = False
    timers = None
    num_moe_experts = None
    mtp_num_layers = None


def gradient(group: dist.ProcessGroup) -> float:
    w = torch.ones((), requires_grad=True)
    batch = {"numbers": NUMBERS.clone(), "loss_mask": MASK.clone()}
    batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=group)

    def loss_func(losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        mask = batch["loss_mask"]
        return (losses * mask).sum(), mask.sum().int(), {}

    loss, _ = forward_step_calc_loss(
        torch.nn.Module(),
        w * batch["numbers"],
        loss_func,
        Config(),
        vp_stage=None,
        collect_non_loss_data=False,
        num_microbatches=1,
        forward_data_store=[],
        cp_group_size=group.size(),
        is_last_stage=True,
    )
    loss.backward()
    assert w.grad is not None
    dist.all_reduce(w.grad, group=group)
    return (w.grad / group.size()).item()


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    alone = [dist.new_group([each]) for each in range(2)]
    expected = gradient(alone[index])
    got = gradient(dist.group.WORLD)
    if index == 0:
        print(f"expected gradient {expected:.6f}  (context_parallel_size 1)")
        print(f"got      gradient {got:.6f}  (context_parallel_size 2)")
        Path(folder, "wrong").write_text("1" if abs(expected - got) > 1e-6 else "")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(bool(Path(folder, "wrong").read_text()))
