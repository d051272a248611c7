"""ChunkedCrossEntropyLoss(reduction='sum') with ulysses_size > 1: each rank without targets adds
one token to the count

twinkle-kit 0.5.1. gather_loss_tensors gathers nothing for a loss that takes logits, so each rank
counts the targets of its part of the sequence, and none count as one. clip_grad_norm and
LossMetric divide by the sum of these counts over ranks. With --control the second rank has a
target as well.

Run: python chunked-loss-counts-empty-ranks.py [--control] (two processes on the CPU; no GPU).
"""

import importlib.util
import sys
import tempfile
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REDUCTION = "sum"
# Parts of one row. The second rank has no target, as where its part is all padding.
LABELS = torch.tensor([[3, 1, 2 if "--control" in sys.argv else -100, -100]])


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
