"""v1 trainer, Ulysses: cp_size above 1 drops sliding_window, softmax_scale and softcap of the
attention

LLaMA-Factory 0.9.5 (v1). `new_flash_attn_forward` takes them into **kwargs and hands none of them
on. With cp_size above one a model with a sliding window attends to everything, without a word.
With --control the model has no window, and the usual scale.

Run: python window-dropped.py (two processes on the CPU; a recorder stands in for flash-attn).
"""

import importlib.util
import socket
import sys
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WINDOW, SCALE = (None, 8**-0.5) if "--control" in sys.argv else (3, 0.5)


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
    got = {}

    def attention(query, *_, **named):
        got.update(named)
        return query

    states = torch.randn(3, 1, 4, 2, 8)
    released().new_flash_attn_forward(
        *states,
        None,
        sequence_parallel_size=2,
        group=dist.group.WORLD,
        attn_fn=attention,
        sliding_window=WINDOW,
        softmax_scale=SCALE,
    )
    if index == 0:
        found.put((got.get("sliding_window"), got.get("softmax_scale")))
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    window, scale = found.get()
    for name, *of in (("expected:", WINDOW, SCALE), ("got:     ", window, scale)):
        print(f"{name} attention is called with sliding_window={of[0]}, softmax_scale={of[1]}")
    return int((window, scale) != (WINDOW, SCALE))


if __name__ == "__main__":
    sys.exit(main())
