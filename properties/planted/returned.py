"""A right step that returns its loss in other ways, and steps that return none or train none."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from harness.recipes import Recipe, Step, step
from harness.recipes.batch import Batch
from properties.planted.packed import COLUMNS, train
from properties.planted.packed import loss as plain
from properties.planted.terms import Masked


def with_metric(model: Any, batch: Batch) -> Any:
    loss = plain(model, batch)
    return loss, {"twice": 2 * loss}


RECIPE = Recipe(Masked, with_metric, COLUMNS)


def returning(form: Callable[[Tensor], Any]) -> Step:
    return step(RECIPE)(lambda model, batch, mesh: form(train(model, batch, mesh)))


number = returning(lambda loss: (loss.item(), {"twice": 2 * loss.item()}))
wrong_number = returning(lambda loss: (loss.item(), {"twice": 3 * loss.item()}))
nothing = returning(lambda _: None)
three = returning(lambda loss: (loss, {}, {}))
a_list = returning(lambda loss: (loss, {"twice": [loss]}))
shortened = returning(lambda loss: (loss, {"twi": 2 * loss}))


def without_gradients(model: Any, batch: Batch, mesh: Any) -> Tensor:
    loss = train(model, batch, mesh)
    model.zero_grad()
    return loss


def misnamed(_model: Any, batch: Batch, _mesh: Any = None) -> Tensor:
    return batch["advantage"]


untrained = step(RECIPE)(without_gradients)
unknown_to_step = step(RECIPE)(misnamed)
unknown_to_recipe = step(Recipe(Masked, misnamed, COLUMNS))(train)


def looped(model: Any, batch: Any, mesh: Any) -> Tensor:
    return sum((train(model, each, mesh) for each in batch), Tensor())


over_one_batch = step(RECIPE)(looped)
first_of_one_batch = step(RECIPE)(lambda model, batch, mesh: train(model, batch[0], mesh))
one_of_many = step(RECIPE, micro_batches=True)(train)
