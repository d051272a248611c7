"""Run the steps of a case; turn what backward left on each rank into what an optimizer sees."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import ProcessGroup

from harness.candidates.protocol import Emit
from harness.case import LEARNING_RATE, Case


def steps(case: Case, parameters: Mapping[str, nn.Parameter], emit: Emit) -> Iterator[Emit]:
    """Yield for each step how to emit: `silent`, then plain SGD; `emit` in the last step."""
    for number in range(case.steps):
        for parameter in parameters.values():
            parameter.grad = None
        if number == case.steps - 1:
            yield emit
            return
        yield silent
        with torch.no_grad():
            for parameter in parameters.values():
                if parameter.grad is not None:
                    parameter.sub_(LEARNING_RATE * parameter.grad)


def silent(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
    """Emit nothing, in steps before the one that is judged."""


def reduce(
    parameters: Mapping[str, nn.Parameter], group: ProcessGroup, *, mean: bool = False
) -> None:
    """Sum gradients over the group, or average them; a missing gradient counts as zeros."""
    for parameter in parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)
        if mean:
            parameter.grad /= group.size()


def emit_gradients(parameters: Mapping[str, nn.Parameter], emit: Emit) -> None:
    """Emit each gradient by our name, whole if FSDP has cut it; a missing one as zeros."""
    for name, parameter in parameters.items():
        gradient: Any = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        emit(f"grad.{name}", gradient)


def total(value: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum over a group, for a log."""
    value = value.detach().clone()
    dist.all_reduce(value, group=group)
    return value
