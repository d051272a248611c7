"""The parts of lmms-engine that a step needs, without what its packages import beside them."""

import time
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from torch.utils.data import Dataset
from transformers import trainer as transformers_trainer

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted

# Its modules look for flash-attn when they are imported.
flash.give_to_transformers()
MODELS = ("qwen2", "qwen3", "qwen3_vl")
bare_packages(
    "lmms_engine",
    "lmms_engine.models",
    *(f"lmms_engine.models.{name}" for name in MODELS),
    "lmms_engine.utils",
)

# Only now can they be imported.
MONKEY_PATCHER: Any = import_module("lmms_engine.models.monkey_patch").MONKEY_PATCHER
for _name in MODELS:
    import_module(f"lmms_engine.models.{_name}.monkey_patch")
# The modules of the patched forwards, whose loss is Liger's.
forwards: dict[str, ModuleType] = {
    name: import_module(f"lmms_engine.models.{name}.{name}_liger") for name in MODELS
}
packing: Any = import_module("lmms_engine.models.sequence_packing_utils")
ulysses: Any = import_module("lmms_engine.parallel.sequence_parallel.ulysses")


def methods_of_fsdp2_trainer(**given: Any) -> tuple[Any, Any]:
    """Return `training_step` and `compute_loss`; `given` are the names of their module."""
    path = folder("lmms_engine.train") / "fsdp2" / "fsdp2_trainer.py"
    step, loss = (
        lifted(path, f"FSDP2SFTTrainer.{name}", given)
        for name in ("training_step", "compute_loss")
    )
    return step, loss


def hf_trainer() -> Any:
    """Return the whole class, because its methods call those of transformers' trainer below it."""
    # transformers has this name from accelerate, of which a step needs nothing else.
    vars(transformers_trainer).setdefault(
        "DistributedType", SimpleNamespace(DEEPSPEED="deepspeed")
    )
    names = {
        "TRAINER_REGISTER": SimpleNamespace(register=lambda _: lambda trainer: trainer),
        "HFTrainer": transformers_trainer.Trainer,
        "Dataset": Dataset,
        "get_ulysses_sequence_parallel_world_size": (
            ulysses.get_ulysses_sequence_parallel_world_size
        ),
        "send_to_device": lambda batch, *_, **__: batch,
        "time": time,
    }
    return lifted(folder("lmms_engine.train") / "hf" / "trainer.py", "Trainer", names)
