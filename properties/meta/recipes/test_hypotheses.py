"""Each hypothesis predicts gradients that neither plain training nor another hypothesis has."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.anomalies import ANOMALIES
from harness.case import Case, parse
from harness.recipes import Recipe, Step, computed, row, target, token
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.columns import Column
from properties.planted.tiny import Tiny, next_labels

# Rows of unequal lengths, padded on both sides, on two replicas of two micro-batches, so that no
# two hypotheses come to the same.
SIZES = "heads=2 window=2 vocab=23 sp=2 dp=2 micro=2"
CASES = [
    parse(f"case/1 rows={rows} {SIZES}")
    for rows in (
        "5:01111,4:0111:left,3:011,7:0111111,7:0110111:left,5:01111",
        "7:0111111:left,5:01111:left,7:0111111,3:011:left",
    )
]


def next_losses(model: Any, batch: Batch) -> Tensor:
    real_BS = batch["attention_mask"].bool()
    logits_BSV = model(batch["input_ids"], batch["position_ids"], real_BS)
    losses_BS: Tensor = F.cross_entropy(
        logits_BSV.movedim(-1, 1), next_labels(batch), ignore_index=IGNORED, reduction="none"
    )
    return losses_BS


COLUMNS: dict[str, Column] = {
    "by_row": row(1, 2),
    "by_token": token(1, 2),
    "by_target": target(1, 2),
    "made": computed(next_losses),
}


class Windowed(Tiny):
    """Shows the window of its case in what it computes."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.window = case.window

    def forward(self, ids_BL: Tensor, positions_BL: Tensor, real_BS: Tensor) -> Tensor:
        return super().forward(ids_BL, positions_BL, real_BS) * (1 + (self.window or 0))


def weighted(model: Any, batch: Batch) -> Tensor:
    """A loss that reads all columns, their sums and squares, divided by all targets."""
    count = (batch["labels"] != IGNORED).sum().clamp(min=1)
    later_BS = batch["by_token"].flip(1).cumsum(1).flip(1)
    weight_BS = batch["by_row"][:, None] * later_BS * (2 + batch["by_target"].roll(-1, 1))
    losses_BS = next_losses(model, batch) * weight_BS * (1 + batch["made"])
    return losses_BS.sum() / count / (1 + batch["by_target"].square().sum() / count)


STEP = Step(lambda: None, Recipe(Windowed, weighted, COLUMNS), micro_batches=True, limits="",
            supports=None)  # fmt: skip


class Here:
    device = torch.device("cpu")


def gradients(variant: str, case: Case) -> Tensor:
    taken: list[Tensor] = []

    def emit(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        del tokens
        if key.startswith("grad."):
            taken.append(tensor.flatten())

    STEP.run_plain(case, Here(), emit, variant, exactly=True)  # type: ignore[arg-type]
    return torch.cat(taken)


def test_no_two_hypotheses_predict_the_same() -> None:
    variants = ("plain", *STEP.hypotheses)
    assert len(variants) > 25
    found = {name: torch.cat([gradients(name, case) for case in CASES]) for name in variants}
    for number, name in enumerate(variants):
        for other in variants[:number]:
            # Directions, because a hypothesis may fit with a factor.
            cosine = torch.cosine_similarity(found[name], found[other], dim=0)
            assert cosine < 1 - 1e-6, f"{name} and {other}"


def test_hypotheses_have_names_of_anomalies() -> None:
    assert {name.partition(": ")[0] for name in STEP.hypotheses} <= ANOMALIES.keys()
