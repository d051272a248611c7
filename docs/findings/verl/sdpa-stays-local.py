"""FSDP: with ulysses_sequence_parallel_size above 1 and attn_implementation sdpa or eager every
rank attends to its own shard only

verl 0.9.1. With ulysses_sp_size above one it replaces transformers' _flash_attention_forward and
does not look at the model's attn_implementation. There is no error, and the loss can stay close.
With --control the model on two ranks has flash_attention_2; plain torch stands in for its kernel.

Run: python sdpa-stays-local.py [--control] (two processes on the CPU; no ray, no hydra).
"""

import importlib.util
import socket
import sys
from contextlib import redirect_stdout
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM, modeling_flash_attention_utils

CONTROL = "--control" in sys.argv
IDS = torch.tensor([[5, 6, 7, 8]])


def released():
    """The two modules, without what their packages import beside them."""
    root = importlib.util.find_spec("verl").submodule_search_locations[0]
    below = ("", ".utils", ".utils.dataset", ".models", ".models.transformers", ".plugin")
    for name in below:
        package = ModuleType("verl" + name)
        package.__path__ = [root + name.replace(".", "/")]
        sys.modules[package.__name__] = package
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.utils import ulysses

    return apply_monkey_patch, ulysses


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 16}
    config = Qwen2Config(
        **sizes, num_attention_heads=2, num_key_value_heads=2, attn_implementation="sdpa"
    )
    return Qwen2ForCausalLM(config)


def flash(*states, **_):
    query, key, value = (x.transpose(1, 2) for x in states[:3])
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    shared = model()
    if CONTROL:
        modeling_flash_attention_utils._flash_attention_forward = flash
        shared.config._attn_implementation = "flash_attention_2"
    apply_monkey_patch, ulysses = released()
    with redirect_stdout(sys.stderr):
        apply_monkey_patch(shared, ulysses_sp_size=2)
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    places = torch.arange(4)[None]
    mine, at = (ulysses.slice_input_tensor(x, dim=1, padding=False) for x in (IDS, places))
    with torch.no_grad():
        logits = shared(input_ids=mine, position_ids=at, use_cache=False).logits
    if index == 1:
        found.put(logits[0, -1, :4].tolist())
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    got = torch.tensor(found.get())
    with torch.no_grad():
        expected = model()(input_ids=IDS, use_cache=False).logits[0, -1, :4]
    print("expected logits of the last token", *(f"{each:8.4f}" for each in expected))
    print("got      logits of the last token", *(f"{each:8.4f}" for each in got))
    return int(not torch.allclose(expected, got, atol=1e-5))


if __name__ == "__main__":
    sys.exit(main())
