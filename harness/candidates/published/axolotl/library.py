"""The parts of axolotl and ringmaster that a training needs, on a machine without a GPU."""

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

# Before axolotl is imported: it sends nothing about its use.
os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from torch import Tensor

from harness.candidates.published.flash_stand_in import blocks, flash

blocks.install()
flash.give_to_transformers()
# Rings find the functions for blocks in the module of this one.
flash.flash_attn_func.__module__ = blocks.INTERFACE

Trainer: Any = import_module("axolotl.core.trainers.base").AxolotlTrainer
TrainingArguments: Any = import_module("axolotl.core.training_args").AxolotlTrainingArguments
Config: Any = import_module("axolotl.utils.dict").DictDefault
collators = import_module("axolotl.utils.collators")
context_parallel = import_module("axolotl.integrations.context_parallel.plugin")
arguments = import_module("axolotl.integrations.context_parallel.args")
meshes = import_module("axolotl.integrations.context_parallel.mesh")

# By module of ringmaster, the function that looks whether a tensor is on a GPU.
_FOR_GPUS = {
    "loop": "varlen_ring_attention",
    "p2p_attn": "ring_p2p_attention",
    "zigzag": "zigzag_ring_attention",
    "distflash": "distflash_attention",
}


def _as_on_a_gpu(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a released ring call flash-attn, as it does for tensors that are on a GPU."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        with patch.object(torch.Tensor, "is_cuda", new=True):
            return function(*args, **kwargs)

    return call


for _module, _name in _FOR_GPUS.items():
    _ring = import_module(f"ringmaster.ring.{_module}")
    setattr(_ring, _name, _as_on_a_gpu(getattr(_ring, _name)))

# It makes groups, so each is made once.
vars(meshes)["RingmasterMesh"] = cache(meshes.RingmasterMesh)
