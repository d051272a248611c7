"""FSDP with context parallelism: with attn_impl sdpa, eager or flex_attention every rank of a text
model attends to its own shard only

areal 1.0.4: with attn_impl=sdpa, and by reading with eager, no rank sees another rank's tokens.
With --control attn_impl is flash_attention_2; plain torch stands in for its kernel.

pip install areal==1.0.4; needs no GPU. Exit status 1 if the bug shows.
"""

import importlib.util
import logging
import socket
import sys
import types
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2Config, Qwen2ForCausalLM, modeling_flash_attention_utils

CONTROL = "--control" in sys.argv
RANKS, TOKENS = 2, 8


def kernel(q, k, v, *_, **__):
    """What flash-attn computes of one row."""
    states = [x.transpose(1, 2) for x in (q, k, v)]
    return scaled_dot_product_attention(*states, is_causal=True).transpose(1, 2)


def patch(model):
    """apply_monkey_patch, without what the packages of its module import."""
    modeling_flash_attention_utils._flash_attention_forward = kernel
    place = Path(importlib.util.find_spec("areal").submodule_search_locations[0])
    for name in ("areal", "areal.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    sys.modules["areal.utils"].logging = logging
    from areal.models.fsdp import ulysses
    from areal.models.transformers.ulyssess_patch import apply_monkey_patch

    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    apply_monkey_patch(model, ulysses_sp_size=RANKS)
    return ulysses


def rank(index, port, results):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=RANKS
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config)
    ids, positions = torch.arange(TOKENS)[None] % 16, torch.arange(TOKENS)[None]
    # As the engine hands it over.
    masks = {"full_attention": None, "sliding_attention": None}
    with torch.no_grad():
        whole = model(input_ids=ids, position_ids=positions, attention_mask=masks).logits
        if CONTROL:
            # Past the check that flash-attn is installed.
            model.config._attn_implementation_internal = "flash_attention_2"
        ulysses = patch(model)
        mine, places, _ = ulysses.ulysses_pad_and_slice_inputs(ids, positions, sp_size=RANKS)
        part = model(input_ids=mine, position_ids=places, attention_mask=masks).logits
    expected = whole.chunk(RANKS, dim=1)[index]
    results.put((index, expected[0, 0, 0].item(), part[0, 0, 0].item()))
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, results), nprocs=RANKS)
    wrong = False
    for index, expected, got in sorted(results.get() for _ in range(RANKS)):
        print(f"first logit of rank {index}: expected {expected:.4f}, got {got:.4f}")
        wrong |= abs(expected - got) > 1e-4
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
