"""ChunkedCrossEntropyLoss with ulysses_size > 1 trains on the mean of the ranks' means, because
its logits are not gathered

twinkle-kit 0.5.1. gather_loss_tensors gathers nothing for a loss that takes logits, so with its
default reduction each rank averages over the targets of its part of the sequence. FSDP averages
gradients over ranks, and LossMetric the losses, as if all parts had as many targets. With
--control both ranks have two targets.

Run: python chunked-loss-mean-of-ranks.py [--control] (two processes on the CPU; no GPU).
"""

import importlib.util
import sys
import tempfile
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REDUCTION = "mean"
# Parts of one row: two targets on the first rank, one on the second.
LABELS = torch.tensor([[3, 1, 2, 5 if "--control" in sys.argv else -100]])


def released():
    """The strategy and the loss, without what the packages above them import beside them."""
    root = importlib.util.find_spec("twinkle").submodule_search_locations[0]
    for below in (
        "",
        "/loss",
        "/utils",
        "/model",
        "/model/transformers",
        "/model/transformers/strategy",
    ):
        name = f"twinkle{below.replace('/', '.')}"
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [root + below]
    from twinkle.utils.device_mesh import DeviceMesh

    sys.modules["twinkle.utils"].DeviceMesh = DeviceMesh
    from twinkle.loss.chunked_cross_entropy import ChunkedCrossEntropyLoss
    from twinkle.model.transformers.strategy import sequence_parallel

    return sequence_parallel, ChunkedCrossEntropyLoss


def logits():
    torch.manual_seed(0)
    return torch.randn(1, LABELS.shape[1], 8)


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    module, loss = released()
    # As prepare() leaves it for a model with two kv heads.
    shared = module.sequence_parallel
    shared.world_size = shared.seq_world_size = shared.sp_world_size = size
    shared.rp_world_size, shared._sp_rank, shared._sp_group = 1, index, dist.group.WORLD
    strategy = module.SequenceParallelStrategy(sp_config={"ulysses_size": size})
    inputs = {"labels": LABELS, "position_ids": torch.arange(LABELS.shape[1])[None]}
    inputs = strategy.preprocess_inputs(inputs)
    outputs = {"logits": shared.split(logits(), dim=1)}
    inputs, outputs = strategy.gather_loss_tensors(inputs, outputs)
    result = loss(chunk_size=4, reduction=REDUCTION)(inputs, outputs)
    # LossMetric divides the sums over ranks.
    sums = torch.tensor([result["loss"].item(), float(result["num_tokens"] or 1)])
    dist.all_reduce(sums)
    if index == 0:
        found.put((sums[0] / sums[1]).item())
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    loss = released()[1](chunk_size=4, reduction="mean")
    expected = loss({"labels": LABELS}, {"logits": logits()})["loss"].item()
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (2, f"file://{folder}/store", found), nprocs=2)
    got = found.get()
    print(f"expected loss {expected:.4f}, of one rank")
    print(f"got      loss {got:.4f}, of two that share the sequence")
    return int(abs(got - expected) > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
