"""Small recipes: some are no reference, some steps are wrong, and one has micro-batches."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harness.case import Case
from harness.recipes import Recipe, step


class Tiny(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(case.vocab, 4), nn.Linear(4, case.vocab)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(ids))
        return logits


def supervised(model: Any, batch: Any, weight: Any = 1.0) -> Tensor:
    real = batch["attention_mask"] == 1
    logps = model(batch["input_ids"]).log_softmax(-1)
    picked = logps.gather(-1, batch["input_ids"][..., None])[..., 0]
    loss: Tensor = -(picked * real * weight).sum() / real.sum()
    return loss


def shared(model: Any, batch: Any, mesh: Any) -> Tensor:
    """Wrong by design, so that its recipe is asked again."""
    loss = 2 * supervised(model, batch)
    loss.backward()
    torch.distributed.all_reduce(torch.ones_like(loss), group=mesh["sp"].get_group())
    return loss.detach()


def draws_anew(model: Any, batch: Any) -> Tensor:
    return supervised(model, batch) * (1 + torch.rand(()))


def sees_padding(model: Any, batch: Any) -> Tensor:
    width: int = batch["input_ids"].shape[1]
    return supervised(model, batch) * width


def sees_order(model: Any, batch: Any) -> Tensor:
    rows = batch["row"]
    places = torch.arange(1, 1 + len(rows), device=rows.device)[:, None]
    return supervised(model, batch, places)


def raises(model: Any, batch: Any) -> Tensor:
    return supervised(model, batch) * (1 // 0)


def with_entropy(model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    loss = supervised(model, batch)
    return loss, {"entropy": 3 * loss.detach()}


DRAWS_ANEW = step(Recipe(Tiny, draws_anew))(shared)
SEES_PADDING = step(Recipe(Tiny, sees_padding))(shared)
SEES_ORDER = step(Recipe(Tiny, sees_order))(shared)
RAISES = step(Recipe(Tiny, raises))(shared)


@step(Recipe(Tiny, supervised), limits="dp=1")
def ALONE(model: Any, batch: Any, mesh: Any) -> Tensor:  # noqa: N802 - as candidates are named
    del mesh
    loss = supervised(model, batch)
    loss.backward()
    return loss.detach()


@step(Recipe(Tiny, with_entropy), limits="dp=1")
def WRONG_METRIC(model: Any, batch: Any, mesh: Any) -> Any:  # noqa: N802
    group = mesh["sp"].get_group()
    real = batch["attention_mask"] == 1
    mine = torch.arange(real.shape[1], device=real.device) % group.size() == group.rank()
    logps = model(batch["input_ids"][:, mine]).log_softmax(-1)
    picked = logps.gather(-1, batch["input_ids"][:, mine][..., None])[..., 0]
    loss = -(picked * real[:, mine]).sum() / real.sum()
    loss.backward()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    torch.distributed.all_reduce(loss := loss.detach())
    return loss, {"entropy": loss}


def in_micro_batches(model: Any, batches: Any, mesh: Any, *, whole: bool = True) -> Tensor:
    """Train on columns of each micro-batch; without `whole`, divide each by its own count."""
    group = mesh["sp"].get_group()
    count = sum(batch["attention_mask"].sum() for batch in batches)
    torch.distributed.all_reduce(count, group=mesh["dp"].get_group())
    total = torch.zeros_like(model.head.weight[0, 0])
    for batch in batches:
        real = batch["attention_mask"] == 1
        mine = torch.arange(real.shape[1], device=real.device) % group.size() == group.rank()
        ids = batch["input_ids"][:, mine]
        picked = model(ids).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        loss = -(picked * real[:, mine]).sum() / (count if whole else real.sum())
        loss.backward()
        total += loss.detach()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    torch.distributed.all_reduce(total)
    return total


MICRO_BATCHES = step(Recipe(Tiny, supervised), micro_batches=True)(in_micro_batches)
MEANS_OF_MICRO_BATCHES = step(Recipe(Tiny, supervised), micro_batches=True)(
    partial(in_micro_batches, whole=False)
)
