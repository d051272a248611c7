"""Run Megatron-Core on CPUs, without CUDA, NCCL and Transformer Engine."""

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import utils
from torch import Tensor
from torch import distributed as dist
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
TORCH_ALL_REDUCE = dist.all_reduce


class OnCpu(TorchFunctionMode):
    """While this mode is on, tensors are made on the CPU instead of a GPU, and not pinned."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if function is Tensor.cuda:
            return args[0]
        if options.get("device") == "cuda":
            options["device"] = CPU
        options.pop("pin_memory", None)
        return function(*args, **options)


def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
    """Reduce as torch does; gloo has no average, so each rank divides first."""
    if op == dist.ReduceOp.AVG:
        tensor /= dist.get_world_size(options["group"])
        op = dist.ReduceOp.SUM
    return TORCH_ALL_REDUCE(tensor, op, **options)


def partitioned_indices(ends: Tensor, length: int, size: int, rank: int) -> Tensor:
    """Return this rank's places in a pack: of each sequence, one piece from either end."""
    pieces: list[Tensor] = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        chunks = torch.arange(start, end).chunk(2 * size)
        pieces += [chunks[rank], chunks[2 * size - 1 - rank]]
    assert length == ends[-1]
    return torch.cat(pieces)


def install() -> None:
    """Replace these names, once in a process, before anything is built."""
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment,return-value]
    # Gradients are reduced after the events of CUDA graphs; here are none to wait for.
    torch.cuda.current_stream = lambda: None  # type: ignore[assignment,misc]
    dist.all_reduce = all_reduce  # type: ignore[assignment]
    # This one function stands in for Transformer Engine: it finds the tokens of a rank.
    utils.tex = SimpleNamespace(thd_get_partitioned_indices=partitioned_indices)
    utils.is_te_min_version = lambda *_, **__: True
