"""Sequence parallelism with sdpa and a sliding window raises for a single row whose length
ulysses_size does not divide: its attention_mask is not padded

twinkle-kit 0.5.1, transformers 5.23. A row of 5 tokens is padded to 6 for two ranks; its attention
mask, which the template always adds, is padded in batches of several rows only. With --control
the row has 6 tokens, and needs no padding.

Run: python mask-of-one-row-not-padded.py [--control] (two processes on the CPU; no GPU).
"""

import importlib.util
import sys
import tempfile
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import MistralConfig, MistralForCausalLM

TOKENS, WINDOW = 6 if "--control" in sys.argv else 5, 3


def released():
    """The module and the mesh, without what the packages above them import beside them."""
    root = importlib.util.find_spec("twinkle").submodule_search_locations[0]
    for below in ("", "/utils", "/model", "/model/transformers", "/model/transformers/strategy"):
        name = f"twinkle{below.replace('/', '.')}"
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [root + below]
    from twinkle.utils.device_mesh import DeviceMesh

    sys.modules["twinkle.utils"].DeviceMesh = DeviceMesh
    from twinkle.model.transformers.strategy import sequence_parallel

    return sequence_parallel.sequence_parallel, DeviceMesh


def model_and_row():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, sliding_window=WINDOW, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    row = {
        "input_ids": torch.arange(1, TOKENS + 1)[None],
        "position_ids": torch.arange(TOKENS)[None],
        "attention_mask": torch.ones(1, TOKENS, dtype=torch.int64),
    }
    return MistralForCausalLM(config), row


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    shared, mesh = released()
    model, row = model_and_row()
    tokenizer = SimpleNamespace(pad_token_id=0)
    shared.prepare(size, model, tokenizer, mesh.from_sizes(dp_size=size, ulysses_size=size))
    torch.set_grad_enabled(False)  # gather() has no gradient.
    try:
        logits = shared.gather(model(**shared.prepare_inputs(row)).logits, dim=1)
        got = f"logits that sum up to {logits[:, :TOKENS].sum().item():.4f}"
    except RuntimeError as error:
        got = f"RuntimeError: {error}"
    if index == 0:
        found.put(got)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    model, row = model_and_row()
    expected = f"logits that sum up to {model(**row).logits.sum().item():.4f}"
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (2, f"file://{folder}/store", found), nprocs=2)
    got = found.get()
    print(f"expected {expected}")
    print(f"got      {got}")
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
