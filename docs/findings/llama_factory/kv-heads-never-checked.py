"""v1 trainer, Ulysses: cp_size is accepted though it does not divide the kv heads

LLaMA-Factory 0.9.5 (v1). num_key_value_heads is read from config.num_attention_heads. So a model
with 6 query heads and 3 kv heads is accepted with cp_size 2, though 2 does not divide 3. The
exchange then sends pieces of 2 heads and of 1 head, and all ranks expect pieces of 2. With
--control the model has 2 kv heads.

Run: python kv-heads-never-checked.py (two processes on the CPU; nothing of flash-attn is called).
"""

import importlib.util
import os
import socket
import sys
from types import ModuleType, SimpleNamespace

# Else it logs the time.
os.environ["LLAMAFACTORY_VERBOSITY"] = "WARNING"

import torch.distributed as dist
import torch.multiprocessing as mp

# How many kv heads the model has, and what has to become of it.
KV_HEADS, EXPECTED = 3, "refused: num_key_value_heads must be divisible by cp_size"
if "--control" in sys.argv:
    KV_HEADS, EXPECTED = 2, "accepted"


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
    module = released()
    module.DistributedInterface = lambda: SimpleNamespace(get_group=lambda _: dist.group.WORLD)
    model = type("Model", (), {"__module__": __name__})()
    model.config = SimpleNamespace(num_attention_heads=6, num_key_value_heads=KV_HEADS)
    try:
        module.apply_sequence_parallel(model, {"cp_size": 2})
        said = "accepted"
    except AssertionError as error:
        said = f"refused: {error}"
    if index == 0:
        found.put(said)
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    said = found.get()
    model = f"6 query heads, {KV_HEADS} kv heads, cp_size 2"
    print(f"expected of {model}: {EXPECTED}")
    print(f"got      of {model}: {said}")
    return int(said != EXPECTED)


if __name__ == "__main__":
    sys.exit(main())
