"""PPOValueLoss with ulysses_size > 1 compares each value with the old value and return of another
token, because gather_loss_tensors does not gather values

twinkle-kit 0.5.1. Each rank is left with its part of the values and labels. old_values and
returns are lists with a number for each response token of a row. Where they are at least as many
as a rank has tokens, GRPOLoss._pad_and_align_to_batch takes them for numbers of all tokens, and
cuts them. With --control one rank has the whole row.

Run: python value-loss-not-gathered.py [--control] (two processes on the CPU; no GPU).
"""

import importlib.util
import sys
import tempfile
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZE = 1 if "--control" in sys.argv else 2
# One row of 8 tokens: six predict an answer, three of them on each of two ranks.
LABELS = torch.tensor([[-100, 3, 1, 2, 5, 1, 4, -100]])
VALUES = torch.arange(8.0)[None] / 10
# A number for each response token.
GIVEN = {
    "old_values": [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]],
    "returns": [[1.0, 0.0, 2.0, 0.0, 3.0, 0.0]],
}


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
    from twinkle.loss.value import PPOValueLoss
    from twinkle.model.transformers.strategy import sequence_parallel

    return sequence_parallel, PPOValueLoss()


def rank(index: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=SIZE)
    module, loss = released()
    # As prepare() leaves it for a model with two kv heads.
    shared = module.sequence_parallel
    shared.world_size = shared.seq_world_size = shared.sp_world_size = SIZE
    shared.rp_world_size, shared._sp_rank, shared._sp_group = 1, index, dist.group.WORLD
    strategy = module.SequenceParallelStrategy(sp_config={"ulysses_size": SIZE})
    inputs = {"labels": LABELS, "position_ids": torch.arange(LABELS.shape[1])[None]}
    inputs = strategy.preprocess_inputs(inputs)
    outputs = {"values": shared.split(VALUES, dim=1)}
    # Gradients are averaged over ranks, and so is the loss that is logged.
    got = loss(*strategy.gather_loss_tensors(inputs, outputs), **GIVEN)["loss"]
    dist.all_reduce(got)
    if index == 0:
        found.put(got.item() / SIZE)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    expected = released()[1]({"labels": LABELS}, {"values": VALUES}, **GIVEN)["loss"].item()
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (f"file://{folder}/store", found), nprocs=SIZE)
    got = found.get()
    print(f"expected loss {expected:.4f}, by the loss itself on the whole row")
    print(f"got      loss {got:.4f}, with ulysses_size={SIZE}")
    return int(abs(got - expected) > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
