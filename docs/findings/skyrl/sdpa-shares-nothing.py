"""With flash_attn=false, remove_microbatch_padding=false and sequence_parallel_size > 1 every rank
attends to its own shard only.

skyrl 0.4.0, transformers 5.16.1. HFModelWrapper computes the log probabilities of one row, on one
rank and on two that share it; with sdpa they differ from the first token of the second rank on,
for only flash attention is patched. With --control the two ranks have flash attention; plain torch
stands in for its kernel. Run: python sdpa-shares-nothing.py [--control]
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import modeling_flash_attention_utils as utils

CONTROL = "--control" in sys.argv
RANKS = 2
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
SIZES = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def empty(name: str, **names: Any) -> Any:
    """A module, or a package of the true path without what its __init__ imports."""
    module: Any = ModuleType(name)
    sys.modules[name] = module
    vars(module).update(names)
    return module


def released() -> Any:
    """The wrapper of models, where neither ray nor flash-attn nor peft need be installed."""
    (place,) = importlib.util.find_spec("skyrl").submodule_search_locations
    for below in ("", "backends", "backends/skyrl_train", "backends/skyrl_train/workers"):
        name = ".".join(["skyrl", *filter(None, below.split("/"))])
        empty(name).__path__ = [str(Path(place, below))]
    empty("flash_attn").__path__ = []
    empty("flash_attn.bert_padding", pad_input=None, unpad_input=None)
    empty("peft", LoraConfig=None, TaskType=None, get_peft_model=None).__path__ = []
    empty("peft.tuners").__path__ = []
    empty("peft.tuners.lora", LoraLayer=None)
    from skyrl.backends.skyrl_train.distributed import ulysses
    from skyrl.backends.skyrl_train.workers import model_wrapper

    return model_wrapper.HFModelWrapper, ulysses


def flash(*states: Any, **_: Any) -> Any:
    heads = (x.transpose(1, 2) for x in states[:3])
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)


def log_probs(wrapper: Any, model: Any, size: int) -> Any:
    with torch.no_grad():
        wrapped = wrapper(
            model, use_flash_attention_2=size > 1 and CONTROL, sequence_parallel_size=size
        )
        return wrapped(IDS, IDS.shape[1] - 1, torch.ones_like(IDS))[0]


def rank(index: int, store: str, wrong: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", rank=index, world_size=RANKS)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(**SIZES, initializer_range=0.5, attn_implementation="sdpa")
    )
    if CONTROL:
        utils._flash_attention_forward = flash
    wrapper, ulysses = released()
    expected = log_probs(wrapper, model, 1)
    model.config._attn_implementation = "flash_attention_2" if CONTROL else "sdpa"
    # As a worker does when it has made its model.
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    ulysses.apply_monkey_patch(model=model, ulysses_sp_size=RANKS)
    got = log_probs(wrapper, model, RANKS)
    if index == 0:
        print("expected", [round(x, 4) for x in expected.tolist()])
        print("got     ", [round(x, 4) for x in got.tolist()])
        wrong.value = not torch.allclose(expected, got, atol=1e-4)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    wrong = multiprocessing.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (f"{folder}/store", wrong), RANKS)
    sys.exit(int(wrong.value))
