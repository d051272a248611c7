"""verl's workers and engines as released, imported without the services that they import.

What takes the place of ray, peft and the like is never called, but for `Timer`.
"""

import importlib
import importlib.util
import sys
import time
import warnings
from typing import Any, Self

import torch

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.verl import library
from harness.candidates.published.wiring.absent import absent
from harness.candidates.published.wiring.packages import folder, lifted

__all__ = [
    "DataProto",
    "config",
    "engine",
    "library",
    "losses",
    "meshes",
    "models",
    "of_trainer",
    "reduce_metrics",
    "tensordicts",
    "workers",
]

# Services: a cluster, configuration files, adapters, data sets, servers that generate.
ABSENT = (
    *("ray", "omegaconf", "hydra", "codetiming", "peft", "datasets", "pandas"),
    *("verl.checkpoint_engine", "verl.workers.rollout"),
)


class Timer:
    """A stopwatch with the interface of codetiming's."""

    last = 0.0

    def __init__(self, **_: Any) -> None:
        self.began = 0.0

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.last = time.monotonic() - self.began


def imported(name: str) -> Any:
    """Import a released module."""
    return importlib.import_module(name)


def offer(package: str, *modules: str) -> None:
    """Let an emptied package have the public names of some of its modules, as the release has."""
    for module in map(imported, modules):
        names = getattr(module, "__all__", [name for name in vars(module) if name[0] != "_"])
        vars(sys.modules[package]).update({name: getattr(module, name) for name in names})


class Memory:
    """What a device says of its memory; a CPU has none of its own, and it is logged only."""

    @staticmethod
    def max_memory_allocated() -> int:
        return 0

    max_memory_reserved = max_memory_allocated


def be_a_platform() -> None:
    """Tell releases that ask a platform for their device that it is a CPU; others find it out."""
    if not importlib.util.find_spec("verl.plugin.platform"):
        return
    nvidia: Any = imported("verl.plugin.platform.platform_cuda").PlatformCUDA
    names = {
        "device_name": "cpu",
        "device_module": torch.cpu,
        "current_device": lambda _: torch.cpu.current_device(),
        "communication_backend_name": lambda _: "gloo",
    }
    made = type("CPU", (nvidia,), names)()
    imported("verl.plugin.platform.platform_manager").set_platform(made)


flash.give_to_transformers()
with absent(*ABSENT), warnings.catch_warnings():
    # The release warns of engines whose packages are not installed.
    warnings.simplefilter("ignore")
    be_a_platform()
    vars(imported("codetiming"))["Timer"] = Timer
    offer("verl.utils", *(f"verl.utils.{name}" for name in ("groupwise", "config", "tokenizer")))
    offer("verl", "verl.protocol")
    engine: Any = imported("verl.workers.engine.fsdp.transformer_impl")
    workers: Any = imported("verl.workers.engine_workers")
    meshes: Any = imported("verl.workers.engine.fsdp.utils")
    models: Any = imported("verl.utils.model")
    losses: Any = imported("verl.workers.utils.losses")
    padding: Any = imported("verl.workers.utils.padding")
    config: Any = imported("verl.workers.config")
    reduce_metrics: Any = imported("verl.utils.metric").reduce_metrics
    utilities: Any = imported("verl.utils.py_functional")
    tensordicts: Any = imported("verl.utils.tensordict_utils")
    DataProto: Any = imported("verl.protocol").DataProto

workers.get_torch_device = lambda: Memory
for kind, released in (
    ("language_model", engine.FSDPEngineWithLMHead),
    ("value_model", engine.FSDPEngineWithValueHead),
):
    engine.EngineRegistry.register(model_type=kind, backend="fsdp2", device="cpu")(released)


def of_trainer(name: str) -> Any:
    """Return a method of `RayPPOTrainer`, whose module imports what schedules a cluster."""
    given = {
        "DataProto": DataProto,
        "is_distillation_enabled": workers.is_distillation_enabled,
        "left_right_2_no_padding": padding.left_right_2_no_padding,
        "no_padding_2_padding": padding.no_padding_2_padding,
        "rename_dict": utilities.rename_dict,
        "tu": tensordicts,
    }
    path = folder("verl.trainer") / "ppo" / "ray_trainer.py"
    return lifted(path, f"RayPPOTrainer.{name}", given)
