"""reduce_sequence_parallel_loss (xtuner/model, not XTuner V1): gradients ignore how many targets
each rank has

xtuner 0.2.0. The loss that is logged weighs each rank by its number of targets;
`_ReduceLoss.backward` hands the gradient on as it is, and DDP then averages over ranks. So each
rank weighs the same, however few targets it has. Here rank 0 has one target and rank 1 has three.
With --control each rank has two of the four targets.

Run: python loss-mean-of-means.py [--control] (two processes on the CPU; no GPU, no mmengine).
"""

import importlib.util
import socket
import sys
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# The loss of a token is its weight times `w`.
CUT = 2 if "--control" in sys.argv else 1
WEIGHTS = [[1.0, 2.0, 4.0, 9.0][:CUT], [1.0, 2.0, 4.0, 9.0][CUT:]]


def reduce_loss():
    """The released module, without what its packages import beside it."""
    root = importlib.util.find_spec("xtuner").submodule_search_locations[0]
    for name in ("xtuner", "xtuner.parallel", "xtuner.parallel.sequence"):
        package = ModuleType(name)
        package.__path__ = [root + name.removeprefix("xtuner").replace(".", "/")]
        sys.modules[name] = package
    from xtuner.parallel.sequence.reduce_loss import reduce_sequence_parallel_loss

    return reduce_sequence_parallel_loss


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    w = torch.ones((), requires_grad=True)
    mean = (w * torch.tensor(WEIGHTS[index])).mean()
    loss = reduce_loss()(mean, torch.tensor(len(WEIGHTS[index])), dist.group.WORLD)
    loss.backward()
    # As DDP does.
    dist.all_reduce(w.grad)
    if index == 0:
        found.put((loss.item(), w.grad.item() / 2))
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    loss, gradient = found.get()
    # A linear function has the same value and gradient at one.
    expected = torch.tensor(sum(WEIGHTS, [])).mean().item()
    print(f"expected loss {expected:.6f}, gradient {expected:.6f}")
    print(f"got      loss {loss:.6f}, gradient {gradient:.6f}")
    return int(abs(gradient - expected) > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
