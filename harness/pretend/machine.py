"""A process that finds one GPU."""

from typing import Any, Self

import torch

from harness.pretend.modes import Calls, Operations
from harness.pretend.tensor import DEVICE


class Stream:
    """Everything has been computed by the time that somebody waits for it."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Event(Stream):
    """Likewise."""


# What torch is to answer; what it asks nobody knows, and is not answered.
CUDA = {
    "_lazy_init": None,
    "current_device": DEVICE.index,
    "device_count": 1,
    "empty_cache": None,
    "get_device_capability": (8, 0),
    "get_device_name": "pretended GPU",
    "is_available": True,
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "is_initialized": True,
    # One generator is for both; torch.manual_seed asks it first.
    "manual_seed": None,
    "manual_seed_all": None,
    "max_memory_allocated": 0,
    "memory_allocated": 0,
    "reset_peak_memory_stats": None,
    "set_device": None,
    "synchronize": None,
}
ACCELERATOR = {
    "current_accelerator": torch.device("cuda"),
    "current_device_index": DEVICE.index,
    "device_count": 1,
    "is_available": True,
    "set_device_index": None,
    "synchronize": None,
}


def begin() -> torch.device:
    """For as long as it lives this process has a GPU: this one."""
    for module, answers in ((torch.cuda, CUDA), (torch.accelerator, ACCELERATOR)):
        for name, answer in answers.items():
            setattr(module, name, lambda *_, answer=answer, **__: answer)
    for name, function in {
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda *_: Stream(),
        "default_stream": lambda *_: Stream(),
        "stream": lambda *_: Stream(),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    }.items():
        setattr(torch.cuda, name, function)
    torch.accelerator.current_stream = lambda *_: Stream()
    # Or else `torch.tensor` would copy to a device where nobody sees it.
    torch._C._set_only_lift_cpu_tensors(True)  # noqa: SLF001
    # A parameter that is moved stays the same object, as it does on a GPU.
    torch.__future__.set_swap_module_params_on_conversion(True)
    Operations().__enter__()
    Calls().__enter__()
    return DEVICE
