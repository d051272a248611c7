"""Run a script that is written for two GPUs on the CPU, with flash-attn in plain torch.

    python -m torch.distributed.run --nproc-per-node 2 on_the_cpu.py PACKAGES SCRIPT [ARGUMENT]

PACKAGES, separated by commas, are imported without what they import themselves: it needs more than
the pinned packages of a library. A module of the harness among them is imported, and installs what
it has to. MODULE:NAME is a class without anything, in a module that may not exist. What the script
sends to a GPU, or makes there, is on the CPU.
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

from harness.candidates.published.flash_stand_in import blocks
from harness.candidates.published.wiring.packages import bare_packages


class OnTheCPU(TorchFunctionMode):
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
    packages, *sys.argv = sys.argv[1:]
    if find_spec("transformers"):
        # New releases look for flash-attn's distribution when they are imported.
        import_module("transformers.modeling_utils")
    blocks.install()
    for package in filter(None, packages.split(",")):
        module, _, name = package.partition(":")
        if name:
            parts = module.split(".")
            for parent in (".".join(parts[: end + 1]) for end in range(len(parts))):
                sys.modules.setdefault(parent, ModuleType(parent))
            vars(sys.modules[module])[name] = type(name, (), {})
        elif package.startswith("harness."):
            getattr(import_module(package), "install", lambda: None)()
        else:
            bare_packages(package)
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
