"""The Ulysses step that comes with the harness, on any family and loss, and three faults of it.

`any_recipe.py:gpt_oss__grpo` is right; `any_recipe.py:gpt_oss__grpo__sinks_uncut` has that fault.
"""

from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.own.shares import step_of
from harness.recipes import step, ulysses

attention, gathered = ulysses.attention, ulysses.Gathered.apply


def window_ignored(*given: Any, sliding_window: int | None = None, **named: Any) -> Any:
    del sliding_window
    return attention(*given, **named)


def sinks_uncut(*given: Any, s_aux: Tensor | None = None, **named: Any) -> Any:
    if s_aux is not None:
        mine = len(s_aux) // named["group"].size()
        s_aux = torch.cat([s_aux[:mine]] * named["group"].size())
    return attention(*given, s_aux=s_aux, **named)


class StatesNotSummed(ulysses.Gathered):
    """The gradient of what other ranks make of this rank's states is lost."""

    @classmethod
    def apply(cls, x: Tensor, dim: int, group: Any, makes_another: bool) -> Any:
        del makes_another
        return gathered(x, dim, group, False)  # type: ignore[no-untyped-call]


# By name: what takes the place of what.
FAULTS: dict[str, tuple[str, Any]] = {
    "window_ignored": ("attention", window_ignored),
    "sinks_uncut": ("attention", sinks_uncut),
    "states_not_summed": ("Gathered", StatesNotSummed),
}


def with_fault(right: Any, fault: str, model: Any, batch: Any, mesh: Any) -> Any:
    with patch.object(ulysses, *FAULTS[fault]):
        return right(model, batch, mesh)


@cache
def __getattr__(name: str) -> Any:
    """Return the step `FAMILY__LOSS` or `FAMILY__LOSS__FAULT`."""
    if name.startswith("_"):
        raise AttributeError(name)
    model, loss, *faults = name.split("__")
    on_shards = step_of(f"{model}__{loss}")
    recipe, supports = on_shards.recipe, on_shards.supports
    right = ulysses.ulysses(recipe, supports=supports)
    if not faults:
        return right
    taken = partial(with_fault, right, faults[0])
    taken.__name__ = name  # type: ignore[attr-defined]
    return step(recipe, supports=supports)(taken)
