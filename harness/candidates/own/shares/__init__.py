"""Right steps that compute losses on shards, of any family and on many losses.

`harness.candidates.own.shares:gpt_oss__grpo` is the step of that family and that loss. `step` has
what is common to all, `losses` what each loss comes to, `layouts` other columns of ranks,
`experts` layers of experts that a mutant changes, and `images` rows that begin with an image.
"""

from functools import cache
from typing import Any

from harness.candidates.own.shares.images import WithImages
from harness.candidates.own.shares.losses import LOSSES
from harness.candidates.own.shares.step import Supervised
from harness.recipes.families import FAMILIES

__all__ = ["LOSSES", "Supervised", "WithImages", "step_of"]


# A rank asks for a step by its name in each run. A recipe keeps what it has built of a case, so a
# name has to be one recipe.
@cache
def step_of(trains: str, *changes: type) -> Supervised:
    """Return the step that `FAMILY__LOSS` names, with the methods of `changes` before its own.

    Raise `AttributeError` if there is no such family or loss.
    """
    family, _, loss = trains.partition("__")
    if trains == WithImages.trains():
        kind = type(trains, (*changes, WithImages), {})
    elif family.replace("_", "-") in FAMILIES and loss in LOSSES:
        kind = type(trains, (*changes, LOSSES[loss]), {"family": family.replace("_", "-")})
    else:
        raise AttributeError(trains)
    step: Supervised = kind()
    step.name = trains
    return step


def __getattr__(name: str) -> Any:
    return step_of(name)
