"""Make torch find one GPU in this process, the pretended one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch

from harness.pretend.modes import Calls, Operations
from harness.pretend.tensor import DEVICE, tensors_made


class Stream:
    """A stream whose work is always done: everything is computed at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Event(Stream):
    """An event that has always happened."""


# Answers of functions of torch.cuda, or functions in their place. Others stay as they are.
CUDA = {
    "Event": Event,
    "Stream": Stream,
    "_lazy_init": None,
    "current_device": DEVICE.index,
    "current_stream": lambda *_: Stream(),
    "default_stream": lambda *_: Stream(),
    "device_count": 1,
    "empty_cache": None,
    "get_device_capability": (8, 0),
    "get_device_name": "pretended GPU",
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "is_available": True,
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "is_initialized": True,
    # CPU and GPU share one generator here, which torch.manual_seed itself seeds.
    "manual_seed": None,
    "manual_seed_all": None,
    "max_memory_allocated": 0,
    "memory_allocated": 0,
    "memory_stats": lambda *_: {"allocation.all.allocated": tensors_made()},
    "reset_peak_memory_stats": None,
    "set_device": None,
    "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    "stream": lambda *_: Stream(),
    "synchronize": None,
}
ACCELERATOR = {
    "current_accelerator": torch.device("cuda"),
    "current_device_index": DEVICE.index,
    "current_stream": lambda *_: Stream(),
    "device_count": 1,
    "is_available": True,
    "set_device_index": None,
    "synchronize": None,
}


@contextmanager
def pretend_gpu() -> Iterator[torch.device]:
    """Let this process have one GPU, and yield its device."""
    flag = torch._C._only_lift_cpu_tensors()  # noqa: SLF001
    swap = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        for module, answers in ((torch.cuda, CUDA), (torch.accelerator, ACCELERATOR)):
            for name, answer in answers.items():
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, _function_for(answer))
        # Otherwise `torch.tensor` copies to a device without calling any mode.
        stack.callback(torch._C._set_only_lift_cpu_tensors, flag)  # noqa: SLF001
        torch._C._set_only_lift_cpu_tensors(True)  # noqa: SLF001
        # A parameter that is moved stays the same object, as it does on a GPU.
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swap)
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.enter_context(Operations())  # type: ignore[no-untyped-call]
        stack.enter_context(Calls())
        yield DEVICE


FOR_GOOD = ExitStack()


def pretend_gpu_for_good() -> torch.device:
    """Let this process have one GPU until it ends."""
    return FOR_GOOD.enter_context(pretend_gpu())


def _function_for(answer: Any) -> Any:
    """Return a function with this answer, a new one: torch distinguishes functions by identity."""
    return answer if callable(answer) else lambda *_, **__: answer
