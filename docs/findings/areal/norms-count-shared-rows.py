"""With context parallelism reward_norm and adv_norm of level batch count each row once for every
rank that shares it, so that std_unbiased and mean_leave1out are wrong

areal 1.0.4: rewards of four rows, which two ranks share, as they share them with context
parallelism. With --control one rank has the rows.

pip install areal==1.0.4; needs no GPU. Exit status 1 if the bug shows.
"""

import importlib.util
import socket
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing as mp

RANKS = 1 if "--control" in sys.argv else 2
REWARDS = torch.tensor([1.0, 0.0, 0.0, 2.0])


def published():
    """Normalization and its configuration, without what their packages start."""
    ray, numba = types.ModuleType("ray"), types.ModuleType("numba")
    ray.remote = numba.njit = lambda of: of
    sys.modules.update(ray=ray, numba=numba)
    place = Path(importlib.util.find_spec("areal").submodule_search_locations[0])
    for name in ("areal", "areal.infra"):
        package = types.ModuleType(name)
        package.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    # The library logs the time to what is stdout now.
    with redirect_stdout(sys.stderr):
        from areal.api.cli_args import NormConfig
        from areal.utils.data import Normalization

    return NormConfig, Normalization


def rank(index, port, results):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=RANKS
    )
    config, normalization = published()
    # As PPOActor._compute_advantages calls them: the defaults, and a leave-one-out mean alone.
    given = config(), config(mean_leave1out=True, std_level=None)
    got = [normalization(each)(REWARDS).tolist() for each in given]
    if index == 0:
        results.put(got)
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, results), nprocs=RANKS)
    means_of_others = (REWARDS.sum() - REWARDS) / (len(REWARDS) - 1)
    expected = {
        "std_unbiased": (REWARDS - REWARDS.mean()) / (REWARDS.std() + 1e-5),
        "mean_leave1out": REWARDS - means_of_others,
    }
    wrong = False
    for (name, right), got in zip(expected.items(), results.get(), strict=True):
        print(f"{name}: expected {shown(right)}")
        print(f"{name}: got      {shown(got)}")
        wrong |= not torch.allclose(torch.tensor(got), right, atol=1e-3)
    return int(wrong)


def shown(numbers):
    return " ".join(f"{float(number):7.4f}" for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
