"""What twinkle's losses are made of, as their docstrings have it.

Legend: B rows, S columns, V vocabulary, P pairs. A number of a target stands in the target's own
column.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.wiring.actions import Actions
from harness.recipes import losses
from harness.recipes.batch import IGNORED, Batch

# How far below one ratios may be; the steepness of SAPO for good and for bad actions; and the
# length of answers by which Dr. GRPO divides.
LOW, GOOD, BAD, LENGTH = 0.2, 1.0, 1.05, 8
# DPO's strength; SimPO's, and its margin; and the weight of ORPO's odds.
BETA, SIMPO, MARGIN, ODDS = 0.1, 2.5, 0.5, 0.1

# mean(a number of each target, which are targets) -> one number, of the rows of a micro-batch.
Mean = Callable[[Tensor, Tensor], Tensor]


def micro_batches(batch: Batch) -> list[Tensor]:
    """Return the places in the batch of the rows of each micro-batch, in their order.

    twinkle averages a loss over each micro-batch, and gradients over micro-batches.
    """
    ordered_B = batch["row"].argsort()
    place_B2 = torch.stack([batch["replica"], batch["micro_batch"]], 1)[ordered_B]
    part_B = place_B2.unique(dim=0, return_inverse=True)[1]
    return [ordered_B[part_B == part] for part in range(int(part_B.max()) + 1)]


def averaged(mean: Mean, x_BS: Tensor, batch: Batch) -> Tensor:
    """Average over each micro-batch by itself, then over micro-batches."""
    is_target_BS = batch["labels"] != IGNORED
    means = [mean(x_BS[rows], is_target_BS[rows]) for rows in micro_batches(batch)]
    return torch.stack(means).mean()


def picked(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """The log-probability of each label -> BS, zero elsewhere.

    It is the difference that twinkle takes. Of a token that is nearly certain it has few digits,
    so a recipe with another form would round otherwise.
    """
    ahead_BSV = logits_BSV[:, :-1].float()
    chosen_BS = ahead_BSV.gather(-1, labels_BS[:, 1:].clamp(min=0)[..., None])[..., 0]
    logps_BS = F.pad(chosen_BS - ahead_BSV.logsumexp(-1), (1, 0))
    return logps_BS.masked_fill(labels_BS == IGNORED, 0)


def entropy(logits_BSV: Tensor) -> Tensor:
    """The entropy of what is predicted of each token -> BS, as a difference like the above."""
    ahead_BSV = logits_BSV[:, :-1].float()
    mean_BS = (ahead_BSV.softmax(-1) * ahead_BSV).sum(-1)
    return F.pad(ahead_BSV.logsumexp(-1) - mean_BS, (1, 0))


def by_token(x_BS: Tensor, is_target_BS: Tensor) -> Tensor:
    return (x_BS * is_target_BS).sum() / is_target_BS.sum().clamp(min=1)


def by_row(x_BS: Tensor, is_target_BS: Tensor) -> Tensor:
    """The average over the targets of each row, then over rows."""
    return ((x_BS * is_target_BS).sum(1) / is_target_BS.sum(1).clamp(min=1)).mean()


def by_length(x_BS: Tensor, is_target_BS: Tensor) -> Tensor:
    """The sum over the targets of each row by a constant, then the average over rows."""
    return (x_BS * is_target_BS).sum(1).mean() / LENGTH


MEANS: dict[str, Mean] = {"token-mean": by_token, "seq-mean-token-mean": by_row}

# What each target loses, and whether its ratio counts as clipped.
Loss = Callable[[Actions], tuple[Tensor, Tensor]]


def clipped(of: Actions) -> tuple[Tensor, Tensor]:
    return of.surrogate(of.ratios())


def of_rows(of: Actions) -> tuple[Tensor, Tensor]:
    """GSPO: the ratio of a row is the geometric mean of those of its targets."""
    gain_BS = (of.logps_BS - of.old_BS).clamp(-20, 20)
    ratio_B1 = losses.mean_of_row(gain_BS, of.batch).exp()[:, None]
    return of.surrogate(ratio_B1.expand_as(gain_BS))


def gated(of: Actions) -> tuple[Tensor, Tensor]:
    """SAPO, of which the log tells what would be clipped."""
    return of.gated(GOOD, BAD), clipped(of)[1]


def weighted(of: Actions) -> tuple[Tensor, Tensor]:
    """CISPO: a ratio is bounded from above, and counts as clipped on either side."""
    ratio_BS = of.ratios()
    is_far_BS = (ratio_BS < 1 - of.low) | (ratio_BS > 1 + of.high)
    near_BS = ratio_BS.clamp(max=1 + of.high)
    return -near_BS.detach() * of.advantages_BS * of.logps_BS, is_far_BS


GRPO: dict[str, tuple[Loss, Mean]] = {
    "GRPOLoss": (clipped, by_row),
    "GSPOLoss": (of_rows, by_row),
    "SAPOLoss": (gated, by_row),
    "CISPOLoss": (weighted, by_token),
    "BNPOLoss": (clipped, by_token),
    "DRGRPOLoss": (clipped, by_length),
}


# What a pair loses, by how much more the preferred and the other row gained over a reference.
def kto(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    return 1 - (BETA * chosen_P).sigmoid() + (BETA * rejected_P).sigmoid()


DPO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": lambda chosen_P, rejected_P: -F.logsigmoid(BETA * (chosen_P - rejected_P)),
    "hinge": lambda chosen_P, rejected_P: (1 - BETA * (chosen_P - rejected_P)).relu(),
    "ipo": lambda chosen_P, rejected_P: (BETA * (chosen_P - rejected_P) - 1 / (2 * BETA)).square(),
    "kto_pair": kto,
}


def log_odds(logp_P: Tensor) -> Tensor:
    """The odds of what is as likely as this; of nothing that is certain, as twinkle has it."""
    return logp_P - (-torch.expm1(logp_P.clamp(max=-1e-7))).log()
