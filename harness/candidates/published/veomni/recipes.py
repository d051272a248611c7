"""What plain training is for veomni's trainers, for one device.

Legend: B rows, P pairs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.veomni import settings
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes import Recipe, losses
from harness.recipes.batch import Batch
from harness.recipes.families import any_family, family

# The weights of the reference, as a share of those of the policy.
REFERENCE = 1 - 2.0**-4


def dpo(
    model: Any,
    batch: Batch,
    *,
    loss_type: str,
    beta: float,
    label_smoothing: float,
    reference_free: bool,
    average_log_prob: bool,
) -> Any:
    """DPO, or the identity's loss, averaged over pairs."""

    def answered(model: Any) -> Tensor:
        logps_BS = losses.logps(model, batch)
        return losses.mean_of_row(logps_BS, batch) if average_log_prob else logps_BS.sum(1)

    with torch.no_grad():
        reference_B = answered(scaled(model, REFERENCE))
    policy_B = answered(model)
    gain_B = policy_B if reference_free else policy_B - reference_B
    chosen_P, rejected_P = losses.in_pairs(gain_B, batch)
    margin_P = chosen_P - rejected_P
    if loss_type == "ipo":
        loss_P = (margin_P - 1 / (2 * beta)).square()
    else:
        loss_P = -F.logsigmoid(beta * margin_P) * (1 - label_smoothing)
        loss_P = loss_P - F.logsigmoid(-beta * margin_P) * label_smoothing
    log = {
        "chosen": beta * chosen_P.mean(),
        "rejected": beta * rejected_P.mean(),
        "margin": beta * margin_P.mean(),
    }
    return loss_P.mean(), {} if reference_free else log


RECIPES = {
    "dpo": Recipe(any_family(), dpo, settings=settings.DPO),
    "sft": Recipe(any_family(), losses.supervised, settings=settings.FAMILIES),
    "sft-balanced": Recipe(family("qwen3-moe"), losses.balanced),
}
