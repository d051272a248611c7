"""Candidates of the older protocol, and recipes that they can be compared with."""

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.case import Case
from harness.recipes import Recipe, row, step
from harness.reference import TORCH_DTYPES


class Normed(nn.Module):
    """A model that casts to fp32, as models of transformers do."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(case.vocab, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, case.vocab)

    def forward(self, ids: Tensor) -> Tensor:
        normed = self.norm(self.embed(ids)).float().softmax(-1).to(self.head.weight.dtype)
        logits: Tensor = self.head(normed)
        return logits


def losses(model: Any, ids: Tensor) -> Tensor:
    nll: Tensor = -model(ids).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return nll


def columns_of(batch: Any, ranks: int, index: int) -> Tensor:
    real = batch["attention_mask"]
    return torch.arange(real.shape[1], device=real.device) % ranks == index


def weighted(model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    nll, real = losses(model, batch["input_ids"]), batch["attention_mask"]
    loss = (nll * real * batch["scores"][:, None]).sum() / real.sum()
    return loss, {"twice": 2 * loss.detach()}


def dividing_by_zero(model: Any, batch: Any) -> Tensor:
    return weighted(model, batch)[0] * (1 // 0)


RECIPE = Recipe(Normed, weighted, {"scores": row(1, 2)})
RAISES = Recipe(Normed, dividing_by_zero, {"scores": row(1, 2)})


class Older:
    """Trains on every so manieth column of a batch; emits what the older protocol asks for."""

    limits = "dp=1"

    def __init__(self, way: str = "") -> None:
        self.name, self.way = f"older {way}", way

    def supports(self, case: Case) -> str | None:
        del case
        return None

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        dtype = TORCH_DTYPES[case.dtype]
        model = RECIPE.build(case, rank.device, dtype)
        batch = RECIPE.batch(case, list(range(len(case.rows))), rank.device, dtype)
        real, scores = batch["attention_mask"], batch["scores"]
        starts = torch.tensor(case.offsets, device=rank.device)[batch["row"]][:, None]
        numbers = torch.where(real == 1, starts + batch["position_ids"], -1)
        mine = columns_of(batch, case.sp, rank.sp_index)
        nll = losses(model, batch["input_ids"][:, mine])
        if self.way != "without nll":
            emit("nll", nll.flatten(), numbers[:, mine].flatten())
        if self.way == "scores of another row":
            scores = scores.roll(1)
        loss = (nll * real[:, mine] * scores[:, None]).sum() / real.sum()
        loss.backward()
        # It has no attention, so it says that it sent what attention would need.
        emit("sent", torch.tensor(1 << 20))
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=rank.world)
            if self.way != "without a gradient" or name != "head.bias":
                emit(f"grad.{name}", parameter.grad)
        dist.all_reduce(loss := loss.detach(), group=rank.world)
        emit("loss", loss)
        if self.way != "without a metric":
            emit("metric.twice", (3 if self.way == "a wrong metric" else 2) * loss)


RIGHT, NO_NLL, NO_GRADIENT = Older(), Older("without nll"), Older("without a gradient")
NO_METRIC, WRONG_METRIC = Older("without a metric"), Older("a wrong metric")
SCORES = Older("scores of another row")


@step(RECIPE, limits="dp=1")
def WITH_RECIPE(model: Any, batch: Any, mesh: Any) -> Any:  # noqa: N802 - as candidates are named
    """Has gradients that are too large."""
    group = mesh["sp"].get_group()
    mine = columns_of(batch, group.size(), group.rank())
    nll, real = losses(model, batch["input_ids"][:, mine]), batch["attention_mask"]
    loss = (nll * real[:, mine] * batch["scores"][:, None]).sum() / real.sum()
    (2 * loss).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
    dist.all_reduce(loss := loss.detach(), group=group)
    return loss, {"twice": 2 * loss}
