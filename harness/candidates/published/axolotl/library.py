"""The parts of axolotl and ringmaster that a training needs, on a machine without a GPU."""

import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

# Before axolotl is imported: it sends nothing about its use.
os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

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
training_arguments = import_module("axolotl.core.training_args")
rewards = import_module("axolotl.core.trainers.trl")
ebft = import_module("axolotl.core.trainers.ebft.trainer")
ebft_arguments = import_module("axolotl.core.trainers.ebft.args")
grpo = import_module("trl.trainer.grpo_trainer")
enums = import_module("axolotl.utils.schemas.enums")

# In these modules rings call flash-attn only for tensors on a GPU.
for _name in ("p2p_attn", "loop", "zigzag", "distflash"):
    _ring = import_module(f"ringmaster.ring.{_name}")
    _file = Path(str(_ring.__file__))
    _before, *_after = _file.read_text().split("q.is_cuda")
    if not _after:
        raise RuntimeError(f"{_file} does not ask for a GPU")
    exec(compile("True".join([_before, *_after]), _file, "exec"), vars(_ring))  # noqa: S102

# It makes groups, so each is made once.
vars(meshes)["RingmasterMesh"] = cache(meshes.RingmasterMesh)
