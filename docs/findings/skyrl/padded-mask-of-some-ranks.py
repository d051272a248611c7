"""Sequence parallelism without remove_microbatch_padding hangs when only some ranks have padding.

skyrl 0.4.0, transformers 5.16.1. HFModelWrapper computes the log probabilities of a row on one
rank and on two. Four tokens need no padding, and are right. With three the second rank has a
column of padding and waits in the all_gather of masks; the first has none and goes on.
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

RANKS, ROWS = 2, (torch.tensor([[3, 1, 4, 1]]), torch.tensor([[3, 1, 4]]))


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


def log_probs(wrapper: Any, model: Any, size: int, row: Any) -> Any:
    with torch.no_grad():
        wrapped = wrapper(model, use_flash_attention_2=True, sequence_parallel_size=size)
        return [round(x, 4) for x in wrapped(row, 2, torch.ones_like(row))[0].tolist()]


def rank(index: int, store: str) -> None:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=20), RANKS, index)
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.5))
    wrapper, ulysses = released()
    model.config._attn_implementation = utils._loaded_implementation = "flash_attention_2"
    named = {"flash": flash, "flash_varlen": varlen, "unpad": unpad, "pad": pad}
    vars(utils).update({f"_{name}_fn": function for name, function in named.items()})
    utils._process_flash_kwargs_fn = lambda **_: {}
    expected = [log_probs(wrapper, model, 1, row) for row in ROWS]
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    ulysses.apply_monkey_patch(model=model, ulysses_sp_size=RANKS)
    for row, right in zip(ROWS, expected, strict=True):
        try:
            got = log_probs(wrapper, model, RANKS, row)
        except RuntimeError as error:
            got = f"nothing within 20 seconds: {error!s:.150}"
        print(f"rank {index}, {row.numel()} tokens: expected {right}, got {got}", flush=True)
    os._exit(int(got != right))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = torch.multiprocessing.spawn(rank, (f"{folder}/store",), RANKS, join=False)
        for process in ranks.processes:
            process.join()
    sys.exit(any(process.exitcode for process in ranks.processes))
