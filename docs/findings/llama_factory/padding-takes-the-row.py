"""v1 trainer, Ulysses, up to 0.9.5: a micro-batch of one unpacked row whose length cp_size does
not divide loses its attention output

LLaMA-Factory 0.9.5 (v1). The renderer numbers a row's tokens from 1; padding_and_split_data pads
these positions with zeros. In a batch of one row transformers takes each position 0 for the
beginning of a packed sequence. So the first sequence begins at the padding, and no real token is
in any sequence. Without cp_size there is no padding, and the row is right. With --control the
row's tokens are numbered from 0.

Run: python padding-takes-the-row.py (two processes on the CPU; nothing of flash-attn is called).
"""

import importlib.util
import socket
import sys
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids


def released():
    """The module, without what the packages above it import beside it."""
    root = importlib.util.find_spec("llamafactory").submodule_search_locations[0]
    below = ("", ".v1", ".v1.accelerator", ".v1.utils", ".v1.plugins", ".v1.plugins.model_plugins")
    for name in (*below, ".v1.plugins.model_plugins.parallelization"):
        package = ModuleType("llamafactory" + name)
        package.__path__ = [root + name.replace(".", "/")]
        sys.modules[package.__name__] = package
    from llamafactory.v1.plugins.model_plugins.parallelization import sequence_parallel

    return sequence_parallel


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    # A row of three tokens.
    positions = [0, 1, 2] if "--control" in sys.argv else [1, 2, 3]
    data = {"position_ids": torch.tensor([positions])}
    mine = released().padding_and_split_data(data, mesh)["position_ids"]
    # As its attention gathers them again.
    whole = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(whole, mine)
    (ends, _), _ = prepare_fa_kwargs_from_position_ids(torch.cat(whole, 1))
    if index == 0:
        found.put(ends.tolist())
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    ends = found.get()
    print("expected: a sequence begins at token 0, such as in cumulative lengths [0, 3, 4]")
    print(f"got:      cumulative lengths {ends}, of which the first sequence begins at {ends[0]}")
    return int(ends[0] != 0)


if __name__ == "__main__":
    sys.exit(main())
