"""Sequence parallelism without remove_microbatch_padding hangs when only some ranks have padding.

skyrl 0.4.0, transformers 5.16.1. HFModelWrapper computes the log probabilities of a row, on one
rank and on two. With three tokens rank 1 has a column of padding and waits in the all_gather of
masks; rank 0 has none and goes on. With --control the row has 4 tokens, and needs no padding.
"""

import importlib.util
import os
import sys
import tempfile
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from torch import distributed as dist
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import modeling_flash_attention_utils as utils

RANKS, ROW = 2, torch.tensor([[3, 1, 4, 1] if "--control" in sys.argv else [3, 1, 4]])


def empty(name: str, **names: Any) -> Any:
    """A module, or a package of the true path without what its __init__ imports."""
    module: Any = ModuleType(name)
    vars(module).update(names)
    return sys.modules.setdefault(name, module)


def released() -> Any:
    """The wrapper of models; ray, flash-attn and peft need not be installed."""
    (place,) = importlib.util.find_spec("skyrl").submodule_search_locations
    for below in ("", ".backends", ".backends.skyrl_train", ".backends.skyrl_train.workers"):
        empty(f"skyrl{below}").__path__ = [place + below.replace(".", "/")]
    names = dict.fromkeys(("LoraConfig", "LoraLayer", "TaskType", "get_peft_model"))
    for name in ("flash_attn", "peft", "peft.tuners", "peft.tuners.lora"):
        empty(name, **names).__path__ = []
    empty("flash_attn.bert_padding", pad_input=pad, unpad_input=unpad)
    from skyrl.backends.skyrl_train.distributed import ulysses
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    return HFModelWrapper, ulysses


def flash(*qkv: Any, **_: Any) -> Any:
    heads = (x.transpose(1, 2) for x in qkv)
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)


def varlen(*qkv: Any, cu_seqlens_q: Any, **_: Any) -> Any:
    rows = zip(*(x[None].split(cu_seqlens_q.diff().tolist(), 1) for x in qkv), strict=True)
    return torch.cat([flash(*row)[0] for row in rows])


def unpad(x: Any, mask: Any) -> Any:
    places, ends = mask.flatten().nonzero().flatten(), F.pad(mask.sum(1).cumsum(0), (1, 0))
    return x.flatten(0, 1)[places], places, ends.int(), int(mask.sum(1).max()), mask.sum(1)


def pad(x: Any, places: Any, batch: int, length: int) -> Any:
    shape = x.shape[1:]
    return x.new_zeros(batch * length, *shape).index_put((places,), x).view(batch, length, *shape)


def log_probs(wrapper: Any, model: Any, size: int) -> Any:
    with torch.no_grad():
        wrapped = wrapper(model, use_flash_attention_2=True, sequence_parallel_size=size)
        return [round(x, 4) for x in wrapped(ROW, 2, torch.ones_like(ROW))[0].tolist()]


def rank(index: int, store: str, found: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=20), RANKS, index)
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.5))
    wrapper, ulysses = released()
    model.config._attn_implementation = utils._loaded_implementation = "flash_attention_2"
    vars(utils).update(_flash_fn=flash, _flash_varlen_fn=varlen, _unpad_fn=unpad, _pad_fn=pad)
    utils._process_flash_kwargs_fn = lambda **_: {}
    expected = log_probs(wrapper, model, 1)
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    ulysses.apply_monkey_patch(model=model, ulysses_sp_size=RANKS)
    try:
        got = log_probs(wrapper, model, RANKS)
    except RuntimeError:
        got = "nothing within 20 seconds"
    found.put((index, expected, got))
    os._exit(0)


if __name__ == "__main__":
    found = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (f"{folder}/store", found), RANKS)
    results = sorted(found.get() for _ in range(RANKS))
    for index, expected, got in results:
        print(f"rank {index} expected {expected}\nrank {index} got      {got}")
    sys.exit(any(got != expected for _, expected, got in results))
