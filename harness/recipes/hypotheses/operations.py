"""What a loss can do otherwise in one operation: leave out a limit, a detach, the worse of two.

An operation is exchanged wherever model and loss call it, since nothing tells which call it is.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from harness.recipes.hypothesis import Hypothesis, Operation, Operations

LARGER = (torch.max, torch.maximum, Tensor.max, Tensor.maximum)
SMALLER = (torch.min, torch.minimum, Tensor.min, Tensor.minimum)


def of_operations() -> list[Hypothesis]:
    return [
        Hypothesis(anomaly, how, operations=operations)
        for anomaly, how, operations in (
            ("clip-wrong", "nothing is limited from above", _without_limits()),
            ("clip-wrong", "the larger of two numbers and the smaller are mixed up", _mixed_up()),
            ("clip-wrong", "the second of two numbers counts, larger or smaller", _second_only()),
            ("constant-trained", "what is detached has gradients", _without_detach()),
        )
    ]


def _without_limits() -> Operations:
    return dict.fromkeys((torch.clamp, torch.clip, Tensor.clamp, Tensor.clip), _unlimited)


def _unlimited(x: Tensor, low: Any = None, high: Any = None, **named: Any) -> Tensor:
    low, high = named.get("min", low), named.get("max", high)
    # An index that is not limited could be out of range.
    return x if high is not None and x.is_floating_point() else x.clamp(low, high)


def _mixed_up() -> Operations:
    return _on_two_by(torch.minimum, LARGER) | _on_two_by(torch.maximum, SMALLER)


def _second_only() -> Operations:
    return _on_two_by(_second, LARGER + SMALLER)


def _on_two_by(other: Operation, names: Iterable[Operation]) -> dict[Operation, Operation]:
    return {called: _on_two(called, other) for called in names}


def _on_two(called: Operation, other: Operation) -> Operation:
    """Call `other` on two tensors of numbers; one tensor alone has its own largest number."""

    def exchanged(*given: Any, **named: Any) -> Any:
        two = (*given, named.get("other"))[:2]
        are_numbers = all(isinstance(x, Tensor) and x.is_floating_point() for x in two)
        return other(*two) if are_numbers else called(*given, **named)

    return exchanged


def _second(x: Tensor, y: Tensor) -> Tensor:
    return y.expand(torch.broadcast_shapes(x.shape, y.shape))


def _without_detach() -> Operations:
    def attached(x: Tensor) -> Tensor:
        return x

    return dict.fromkeys((torch.detach, Tensor.detach), attached)
