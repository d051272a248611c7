"""Run a script that is written for two GPUs on the CPU, with flash-attn in plain torch.

    python -m torch.distributed.run --nproc-per-node 2 on_the_cpu.py STAND-INS SCRIPT [ARGUMENT]

What the script sends to a GPU, or makes there, is on the CPU. STAND-INS, separated by commas, are

    a module of ours      it is imported, and its `install` is called if it has one
    MODULE:NAME           an empty class, in a module that is made if it does not exist
    a library's package   it is imported without what it imports itself, which needs more than the
                          pinned packages
"""

import runpy
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import device_mesh
from torch.overrides import TorchFunctionMode

from harness.candidates.published.flash_stand_in import blocks, flash
from harness.candidates.published.wiring.packages import bare_packages


class OnTheCPU(TorchFunctionMode):
    """Calls of torch get the CPU where they ask for a GPU."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = {name: here(value) for name, value in (kwargs or {}).items()}
        return function(*map(here, args), **named)


def here(value: Any) -> Any:
    is_device = isinstance(value, str | torch.device)
    return "cpu" if is_device and str(value).partition(":")[0] == "cuda" else value


def main() -> None:
    stand_ins, *sys.argv = sys.argv[1:]
    if find_spec("transformers"):
        # New releases look for flash-attn's distribution when they are imported.
        import_module("transformers.modeling_utils")
        flash.give_to_transformers()
    blocks.install()
    for stand_in in filter(None, stand_ins.split(",")):
        module, _, name = stand_in.partition(":")
        if name:
            parts = module.split(".")
            for parent in (".".join(parts[: end + 1]) for end in range(len(parts))):
                sys.modules.setdefault(parent, ModuleType(parent))
            vars(sys.modules[module])[name] = type(name, (), {})
        elif stand_in.startswith(("harness.", "properties.")):
            getattr(import_module(stand_in), "install", lambda: None)()
        else:
            bare_packages(stand_in)
    begin = dist.init_process_group
    dist.init_process_group = lambda backend, **others: begin("gloo", **others)  # noqa: ARG005
    make_mesh = device_mesh.init_device_mesh
    device_mesh.init_device_mesh = lambda device, *sizes, **options: make_mesh(
        here(device), *sizes, **options
    )
    torch.cuda.set_device = lambda device: None  # noqa: ARG005 - as torch calls it
    with OnTheCPU():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
