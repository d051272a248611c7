"""A recipe and a step with settings, and faults that only some of their values bring out."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from harness.case import Case
from harness.recipes import Recipe, step
from harness.recipes.batch import Batch
from properties.planted.styles import gathering, shard_loss, sum_gradients, summed, use
from properties.planted.tiny import Tiny, WithAdapters
from properties.planted.tiny import loss as mean


def loss(model: Any, batch: Batch, *, scale: float) -> Tensor:
    return mean(model, batch) * scale


RECIPE = Recipe(Tiny, loss, settings={"scale": (1.0, 0.5)})
OWN = {"order": ("given", "reversed"), "unread": (False, True)}


def train(
    model: Any,
    batch: Batch,
    mesh: DeviceMesh,
    *,
    scale: float,
    order: str,
    unread: bool,
    fault: str = "",
) -> Tensor:
    del unread
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    if order == "reversed":
        last_first = torch.arange(len(batch["row"])).flip(0)
        batch = {name: column[last_first] for name, column in batch.items()}
    share, count = shard_loss(model, batch, group)
    if fault != "scale_ignored":
        share = share * scale
    if fault == "reversed_and_scaled" and order == "reversed" and scale == 0.5:
        share = share * 3
    (share / count).backward()
    sum_gradients(model)
    return summed(share / count)


right = step(RECIPE, settings=OWN)(train)
scale_ignored = step(RECIPE, settings=OWN)(partial(train, fault="scale_ignored"))
reversed_and_scaled = step(RECIPE, settings=OWN)(partial(train, fault="reversed_and_scaled"))


def with_or_without(case: Case, *, adapters: bool) -> nn.Module:
    return WithAdapters(case) if adapters else Tiny(case)


@step(Recipe(with_or_without, mean, settings={"adapters": (False, True)}))
def adapters_doubled(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    loss = train(model, batch, mesh, scale=1.0, order="given", unread=False)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.grad *= 2
    return loss
