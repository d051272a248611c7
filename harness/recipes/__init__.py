"""Recipes: what plain training is, so that a step of any model and loss can be held to it.

1. A `Recipe` is a model, a loss on the global batch, and the columns that the loss reads.
2. `step(recipe)` above a function `(model, batch, mesh) -> loss` makes it a candidate.
3. The reference is the recipe itself: one device, all rows, the same weights, in fp64.
4. The harness reads `.grad` of every parameter; the function emits nothing.
5. In a case of fp64 everything stays fp64, whatever casts the model's code has.
"""

from collections.abc import Callable
from typing import Any

from harness.case import Case
from harness.case.settings import NONE, Settings
from harness.recipes.columns import computed, row, target, token
from harness.recipes.recipe import Recipe
from harness.recipes.step import LIMITS, Step

__all__ = ["Recipe", "Step", "computed", "row", "step", "target", "token"]


def step(
    recipe: Recipe,
    *,
    micro_batches: bool = False,
    limits: str = "",
    supports: Callable[[Case], str | None] | None = None,
    settings: Settings = NONE,
) -> Callable[[Callable[..., Any]], Step]:
    """Make a candidate of the function below: `(model, batch, mesh) -> loss`.

    With `micro_batches` the function is given a list of batches; without, a case has one. `limits`
    and `supports` are those of a candidate. A field that `limits` leaves out has the limit of
    `LIMITS`. Each of the `settings`, of which the default comes first, is given to the function by
    name, as are those of the recipe.
    """
    stated = [limit.partition("=")[0] for limit in limits.split()]
    usual = LIMITS if micro_batches else f"{LIMITS} micro=1"
    others = [limit for limit in usual.split() if limit.partition("=")[0] not in stated]
    limits = " ".join((*others, *limits.split()))

    def decorate(function: Callable[..., Any]) -> Step:
        return Step(
            function,
            recipe,
            micro_batches=micro_batches,
            limits=limits,
            supports=supports,
            settings=settings,
        )

    return decorate
