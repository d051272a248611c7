"""areal's whole engine: batches, packing, Ulysses, FSDP2, losses, log."""

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.candidates.published.areal.engine import Options, train
from harness.candidates.published.areal.recipes import OF_K3, OF_LOGLINEAR, RECIPES
from harness.candidates.published.areal.reinforced import actor, critic, rewarded
from harness.candidates.published.areal.settings import ENGINE
from harness.candidates.published.library import Step
from harness.recipes import step as recipe_step


def taking(key: str, of: Callable[..., Any], **options: Any) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    step = recipe_step(RECIPES[key], micro_batches=True, settings=ENGINE)
    return step(partial(of, **options)).run


STEPS: dict[str, Step] = {
    "sft": partial(train, Options()),
    "sft-sdpa": partial(train, Options(attention="sdpa")),
    "actor": taking("actor", actor),
    "actor-rewards": taking("actor-rewards", rewarded),
    "actor-normed": taking("actor-normed", rewarded),
    "actor-loglinear": taking("actor-loglinear", rewarded, **OF_LOGLINEAR),
    "actor-k3": taking("actor-k3", actor, **OF_K3),
    "critic": taking("critic", critic),
    "critic-own": taking("critic-own", critic, own=True),
}
