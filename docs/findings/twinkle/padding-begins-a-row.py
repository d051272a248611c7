"""flash_attention_2 on a single row padded for sequence parallelism: with transformers 5.15 or
newer its tokens get no attention

twinkle-kit 0.5.1, transformers 5.23. A row of 5 tokens is padded to 6, with position -1.
transformers is given positions alone, and takes the smallest for the beginning of a row.
Right is a cu_seq_lens that begins at 0, or a mask, by which transformers goes first.
With --control the row has 6 tokens, and needs no padding.

Run: python padding-begins-a-row.py [--control] (two processes on the CPU; no flash-attn).
"""

import importlib.util
import sys
import tempfile
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TOKENS = 6 if "--control" in sys.argv else 5


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
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    row = {
        "input_ids": torch.arange(1, TOKENS + 1)[None],
        "position_ids": torch.arange(TOKENS)[None],
        "attention_mask": torch.ones(1, TOKENS, dtype=torch.int64),
    }
    return LlamaForCausalLM(config), row


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    shared, mesh = released()
    model, row = model_and_row()
    model.config._attn_implementation = "flash_attention_2"
    given = {}

    def attend(_module, query, _key, _value, mask, *_, **named):
        given.update(named, mask=mask)
        return query.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = attend
    tokenizer = SimpleNamespace(pad_token_id=0)
    shared.prepare(size, model, tokenizer, mesh.from_sizes(dp_size=size, ulysses_size=size))
    model(**shared.prepare_inputs(row))
    starts = given.get("cu_seq_lens_q")
    if given["mask"] is not None:
        starts = torch.tensor([0, int(given["mask"].sum())])
    elif starts is None:
        # What transformers does with positions alone, for a batch of one row.
        (starts, _), _ = prepare_fa_kwargs_from_position_ids(given["position_ids"])
    if index == 0:
        found.put((given["position_ids"].tolist(), starts.tolist()))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (2, f"file://{folder}/store", found), nprocs=2)
    positions, starts = found.get()
    print(f"positions that the attention is given: {positions}")
    print("expected a row that begins at 0, such as cu_seq_lens [0, 6]")
    print(f"got      cu_seq_lens {starts}")
    return int(starts[0] != 0)


if __name__ == "__main__":
    sys.exit(main())
