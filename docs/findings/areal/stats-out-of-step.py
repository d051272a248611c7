"""Up to 1.0.4 export_stats crashes or hangs where one replica had no target in a step: ranks enter
different collectives (mended on main)

areal 1.0.4: the log's collectives differ between replicas with and without a target. With
--control both ranks have a target.

pip install areal==1.0.4; needs no GPU. Exit status 1 if the bug shows.
"""

import socket
import sys
import types
from contextlib import redirect_stdout

import torch
from torch import distributed as dist
from torch import multiprocessing as mp

CONTROL = "--control" in sys.argv
RANKS = 2


def rank(index, port, entered):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=RANKS
    )
    # A cluster and a compiler that the modules import and this does not need.
    ray, numba = types.ModuleType("ray"), types.ModuleType("numba")
    ray.remote = numba.njit = lambda of: of
    sys.modules.update(ray=ray, numba=numba)
    import importlib.util
    from pathlib import Path

    place = Path(importlib.util.find_spec("areal").submodule_search_locations[0])
    for name in ("areal", "areal.infra", "areal.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    # The library logs the time to what is stdout now.
    with redirect_stdout(sys.stderr):
        from areal.utils import stats_tracker

    if index == 0 or CONTROL:
        # As compute_packed_sft_loss records it. Rank 1 has no target, so that
        # _compute_logprobs_and_loss returned before its loss function was called.
        counts = torch.tensor([True, True])
        stats_tracker.denominator(n_valid_tokens=counts)
        stats_tracker.stat(loss=torch.tensor([1.0, 3.0]), denominator="n_valid_tokens")
    calls = []

    def all_reduce(tensor, *given, **named):
        calls.append(f"{str(tensor.dtype)[6:]}")

    # Only noted: gloo would end the process.
    stats_tracker.dist.all_reduce = all_reduce
    stats_tracker.export_all(reduce_group=dist.group.WORLD)
    both = [None] * RANKS
    dist.all_gather_object(both, calls)
    if index == 0:
        entered.put(both)
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    entered = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, entered), nprocs=RANKS)
    first, second = entered.get()
    print(f"all_reduce calls of rank 0, dtypes in order: {first}")
    print(f"expected the same of rank 1, got:            {second}")
    return int(first != second)


if __name__ == "__main__":
    sys.exit(main())
