"""What plain training is for twinkle's losses of policies, pairs and values, for one device.

Legend: B rows, S columns, V vocabulary, P pairs, D hidden. A number of a target stands in the
target's own column.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.candidates.published.twinkle import formulas, settings
from harness.candidates.published.twinkle.formulas import (
    BETA,
    DPO,
    GRPO,
    LOW,
    MARGIN,
    MEANS,
    ODDS,
    SIMPO,
    averaged,
    by_token,
    entropy,
    log_odds,
    micro_batches,
    picked,
)
from harness.candidates.published.wiring.actions import Actions
from harness.candidates.published.wiring.scaled import scaled
from harness.case import Case
from harness.recipes import Recipe, computed, losses, row, target
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.families import any_family, family

# The weights of a reference, as a share of those of the policy; and how far an old policy's are
# from the policy's, so that a good part of the ratios is clipped.
REFERENCE, OLD = 1 - 2.0**-4, 2.0**-4


def logps(model: Any, batch: Batch) -> Tensor:
    return picked(losses.logits(model, batch), batch["labels"])


def policy(
    model: Any,
    batch: Batch,
    *,
    loss: tuple[formulas.Loss, formulas.Mean],
    epsilon_high: float | None,
    entropy_coef: float,
    temperature: float,
    beta: float = 0.0,
    loss_is_by_row: bool = False,
) -> Any:
    """A policy's loss, with a penalty for the KL from a reference and a bonus for entropy."""
    logits_BSV = losses.logits(model, batch) / temperature
    logps_BS = picked(logits_BSV, batch["labels"])
    advantages_BS = batch["advantages"]
    if advantages_BS.ndim == 1:
        advantages_BS = advantages_BS[:, None].expand_as(logps_BS)
    high = LOW if epsilon_high is None else epsilon_high
    actions = Actions(logps_BS, batch["old_logps"], advantages_BS, batch, LOW, high, 0.0)
    of_targets, mean = loss
    loss_BS, is_clipped_BS = of_targets(actions)
    gain_BS = logps_BS - batch["old_logps"]
    tables = {
        "new": logps_BS,
        "old": batch["old_logps"],
        "kl": losses.k3(-gain_BS),
        "clipped": is_clipped_BS,
    }
    if beta:
        with torch.no_grad():
            reference_BSV = losses.logits(scaled(model, REFERENCE), batch) / temperature
            reference_BS = picked(reference_BSV, batch["labels"])
        loss_BS = loss_BS + beta * losses.k3(logps_BS - reference_BS)
    if entropy_coef:
        tables["entropy"] = entropy(logits_BSV)
        loss_BS = loss_BS - entropy_coef * tables["entropy"]
    log = {name: losses.mean(x_BS, batch) for name, x_BS in tables.items()}
    if loss_is_by_row:
        answered_B = (batch["labels"] != IGNORED).any(1)
        of_row_B = losses.mean_of_row(is_clipped_BS, batch)
        log["clipped"] = of_row_B.sum() / answered_B.sum().clamp(min=1)
    return averaged(mean, loss_BS, batch), log


def grpo(model: Any, batch: Batch, *, loss: str, **options: Any) -> Any:
    """GRPO and what twinkle derives from it; GSPO counts clipped rows."""
    return policy(model, batch, loss=GRPO[loss], loss_is_by_row=loss == "GSPOLoss", **options)


def ppo(model: Any, batch: Batch, *, loss_agg_mode: str, **options: Any) -> Any:
    return policy(model, batch, loss=(formulas.clipped, MEANS[loss_agg_mode]), **options)


def dpo(
    model: Any,
    batch: Batch,
    *,
    loss_type: str,
    label_smoothing: float,
    reference_free: bool,
    sft_weight: float,
) -> Any:
    """DPO in its variants, and what it may add: cross entropy of the preferred rows."""
    logps_BS = logps(model, batch)
    gain_B = logps_BS.sum(1)
    log = pairs_log(gain_B, "logps", batch)
    if not reference_free:
        with torch.no_grad():
            reference_B = logps(scaled(model, REFERENCE), batch).sum(1)
        gain_B = gain_B - reference_B
        log |= pairs_log(BETA * gain_B, "rewards", batch)
    parts = []
    for rows in micro_batches(batch):
        chosen_P, rejected_P = gain_B[rows[0::2]], gain_B[rows[1::2]]
        loss_P = DPO[loss_type](chosen_P, rejected_P) * (1 - label_smoothing)
        if label_smoothing:
            loss_P = loss_P + label_smoothing * DPO[loss_type](rejected_P, chosen_P)
        parts.append(loss_P.mean() + sft_weight * cross_entropy(logps_BS, rows[0::2], batch))
    return torch.stack(parts).mean(), log


def pairs(model: Any, batch: Batch, *, loss: str) -> Any:
    """SimPO, CPO and ORPO, which have no reference."""
    logps_BS = logps(model, batch)
    sum_B, mean_B = logps_BS.sum(1), losses.mean_of_row(logps_BS, batch)
    parts = []
    for rows in micro_batches(batch):
        chosen, rejected = rows[0::2], rows[1::2]
        known = cross_entropy(logps_BS, chosen, batch)
        if loss == "SimPOLoss":
            margin_P = SIMPO * (mean_B[chosen] - mean_B[rejected]) - MARGIN
            parts.append(-F.logsigmoid(margin_P).mean())
        elif loss == "CPOLoss":
            margin_P = BETA * (sum_B[chosen] - sum_B[rejected])
            parts.append(-F.logsigmoid(margin_P).mean() + known)
        else:
            odds_P = log_odds(mean_B[chosen]) - log_odds(mean_B[rejected])
            parts.append(known - ODDS * F.logsigmoid(odds_P).mean())
    return torch.stack(parts).mean(), pairs_log(sum_B, "logps", batch)


def pairs_log(x_B: Tensor, name: str, batch: Batch) -> dict[str, Tensor]:
    """What is logged of preferred rows and of the others."""
    chosen, rejected = losses.in_pairs(x_B, batch)
    return {f"{name}_chosen": chosen.mean(), f"{name}_rejected": rejected.mean()}


def cross_entropy(logps_BS: Tensor, rows: Tensor, batch: Batch) -> Tensor:
    """Cross entropy of some rows, averaged over their targets."""
    return -by_token(logps_BS[rows], batch["labels"][rows] != IGNORED)


def values_model(case: Case) -> nn.Module:
    """A model of language whose head is that of the release's model of values."""
    model: Any = family("llama")(case)
    model.set_output_embeddings(nn.Linear(model.config.hidden_size, 1))
    model.config.tie_word_embeddings = False
    whole: nn.Module = model
    return whole


def value(model: Any, batch: Batch, *, epsilon: float) -> Tensor:
    """PPO's clipped loss of what is expected before each target."""
    new_BS = F.pad(losses.logits(model, batch)[:, :-1, 0], (1, 0))
    old_BS, returns_BS = batch["old_values"], batch["returns"]
    near_BS = old_BS + (new_BS - old_BS).clamp(-epsilon, epsilon)
    loss_BS = torch.max((new_BS - returns_BS).square(), (near_BS - returns_BS).square()) / 2
    return averaged(by_token, loss_BS, batch)


POLICIES = any_family()
OLD_LOGPS = {"old_logps": computed(losses.logps, nudge=OLD)}
OF_GRPO = Recipe(POLICIES, grpo, {"advantages": row(-2, 2), **OLD_LOGPS}, settings.GRPO)
OF_PPO = Recipe(POLICIES, ppo, {"advantages": target(-2, 2), **OLD_LOGPS}, settings.PPO)
OF_DPO = Recipe(POLICIES, dpo, settings=settings.DPO)
OF_PAIRS = Recipe(POLICIES, pairs, settings=settings.PAIRS)
OF_VALUE = Recipe(
    values_model,
    value,
    {"old_values": target(-2, 2), "returns": target(-2, 2)},
    settings.VALUE,
)
RECIPES = {
    **dict.fromkeys(("grpo", "packed-grpo"), OF_GRPO),
    **dict.fromkeys(("ppo", "packed-ppo"), OF_PPO),
    **dict.fromkeys(("dpo", "packed-dpo"), OF_DPO),
    **dict.fromkeys(("pairs", "packed-pairs"), OF_PAIRS),
    **dict.fromkeys(("value", "packed-value"), OF_VALUE),
}
