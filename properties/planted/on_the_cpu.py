"""Run a script that is written for two GPUs on the CPU, with flash-attn in plain torch.

    python -m torch.distributed.run --nproc-per-node 2 on_the_cpu.py PACKAGES SCRIPT [ARGUMENT]

PACKAGES, separated by commas, are imported without what they import themselves: it needs more than
the pinned packages of a library. A module of the harness among them is imported, which imports the
library's packages. What the script sends to a GPU, or makes there, is on the CPU.
"""

import runpy
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import distributed as dist
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


def here(value: object) -> object:
    is_device = isinstance(value, str | torch.device)
    return "cpu" if is_device and str(value).partition(":")[0] == "cuda" else value


def main() -> None:
    packages, *sys.argv = sys.argv[1:]
    blocks.install()
    for package in filter(None, packages.split(",")):
        if package.startswith("harness."):
            import_module(package)
        else:
            bare_packages(package)
    begin = dist.init_process_group
    dist.init_process_group = lambda _, **others: begin("gloo", **others)
    torch.cuda.set_device = lambda device: None  # noqa: ARG005 - as torch calls it
    with OnTheCPU():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
