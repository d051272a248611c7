"""What plain training is for the trainers whose losses a case cannot express.

Legend: B rows, S columns, D width, P pairs. A number of a target stands in the target's own
column.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.openrlhf import settings
from harness.candidates.published.openrlhf.formulas import (
    MEANS,
    RATIOS,
    balance,
    corrected,
    divergence,
    surrogate,
)
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes import Recipe, computed, losses, row, target
from harness.recipes.batch import Batch
from harness.recipes.columns import Column
from harness.recipes.families import any_family, family

# The weights of the reference, as a share of those of the policy.
REFERENCE = 1 - 2.0**-4
# PPO's coefficient of the KL loss; the mean and the deviation that a model of values has saved.
KL, MEAN, DEVIATION = 0.1, 0.5, 2.0
# How far other weights are from new ones, so that a good part of what is bounded is.
OLD, ACTED, OTHER = 2.0**-4, 2.0**-4, 2.0**-5


def said(model: Any, batch: Batch) -> Any:
    """What the model returns of all rows."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    return model(**given, use_cache=False)


def supervised(model: Any, batch: Batch, *, aux_loss_coef: float) -> Any:
    """Cross entropy, and the loss that has experts chosen equally often."""
    out = said(model, batch)
    log = {"balance": balance(out, batch)}
    loss = -losses.mean(losses.picked(out.logits, batch["labels"]), batch)
    return loss + aux_loss_coef * log["balance"], log


def scores(model: Any, batch: Batch) -> Tensor:
    """What the head of one number says of each token -> BS."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    hidden_BSD = model.model(**given, use_cache=False).last_hidden_state
    scores_BS: Tensor = model.score(hidden_BSD)[..., 0]
    return scores_BS


def reward(model: Any, batch: Batch, *, loss_type: str, margin_loss_enable: bool) -> Any:
    """Bradley-Terry, of what is said of the last token of each row, with a margin or without.

    Both types are the same formula, of which the first is the stable one.
    """
    place_S = torch.arange(1, batch["input_ids"].shape[1] + 1, device=batch["input_ids"].device)
    last_B1 = (batch["attention_mask"] * place_S).argmax(1, keepdim=True)
    chosen_P, rejected_P = losses.in_pairs(scores(model, batch).gather(1, last_B1)[:, 0], batch)
    margin_P = chosen_P - rejected_P
    if margin_loss_enable:
        margin_P = margin_P - losses.in_pairs(batch["margins"], batch)[0]
    loss_P = -F.logsigmoid(margin_P)
    if loss_type == "logexp":
        loss_P = (1 + (-margin_P).exp()).log()
    return loss_P.mean(), {"chosen": chosen_P.mean(), "rejected": rejected_P.mean()}


def dpo(
    model: Any,
    batch: Batch,
    *,
    beta: float,
    ipo_enable: bool,
    label_smoothing: float,
    nll_loss_coef: float,
    aux_loss_coef: float = 0,
) -> Any:
    """DPO or IPO, and the cross entropy of the preferred answers, averaged over each."""
    # A copy of a model that has run lacks the hooks that collect what routers say.
    with torch.no_grad():
        reference_BS = losses.logps(scaled(model, REFERENCE), batch)
    out = said(model, batch)
    logps_BS = losses.picked(out.logits, batch["labels"])
    chosen_P, rejected_P = losses.in_pairs((logps_BS - reference_BS).sum(1), batch)
    margin_P = chosen_P - rejected_P
    if ipo_enable:
        loss_P = (margin_P - 1 / (2 * beta)).square()
    else:
        loss_P = -F.logsigmoid(beta * margin_P) * (1 - label_smoothing)
        loss_P = loss_P - F.logsigmoid(-beta * margin_P) * label_smoothing
    log = {"chosen": beta * chosen_P.mean(), "rejected": beta * rejected_P.mean()}
    log["nll"] = -losses.in_pairs(losses.mean_of_row(logps_BS, batch), batch)[0].mean()
    loss = loss_P.mean() + nll_loss_coef * log["nll"]
    if aux_loss_coef:
        loss = loss + aux_loss_coef * balance(out, batch)
    return loss, log


def critic(model: Any, batch: Batch, *, value_clip: float, normalize_enable: bool) -> Any:
    """PPO's clipped loss of values; that of a target is what is said of the token before it."""
    values_BS = F.pad(scores(model, batch)[:, :-1], (1, 0))
    if normalize_enable:
        values_BS = (values_BS - MEAN) / DEVIATION
    old_BS, returns_BS = batch["old_values"], batch["returns"]
    near_BS = old_BS + (values_BS - old_BS).clamp(-value_clip, value_clip)
    errors_BS = torch.max((near_BS - returns_BS).square(), (values_BS - returns_BS).square())
    return losses.mean(errors_BS, batch) / 2


def actor(
    model: Any,
    batch: Batch,
    *,
    policy_loss_type: str,
    loss_agg_mode: str,
    eps_clip_high: float,
    dual_clip: float | None,
    is_correction: str,
    kl_loss: str | None,
    unbiased_gradient: bool,
    entropy_coef: float | None,
    temperature: float,
    aux_loss_coef: float = 0,
) -> Any:
    """A policy's loss, with a penalty for the KL from a reference and a bonus for entropy.

    GSPO averages over rows, the penalty and the bonus over tokens, whatever the setting is.
    """
    out = said(model, batch)
    logits_BSV = out.logits / temperature
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    gain_BS = logps_BS - batch["old_logps"]
    ratio_BS = RATIOS[policy_loss_type](gain_BS, batch)
    loss_BS, is_clipped_BS = surrogate(ratio_BS, batch["advantages"], eps_clip_high, dual_clip)
    log = {"kl": losses.mean(-gain_BS, batch), "clipped": losses.mean(is_clipped_BS, batch)}
    if is_correction != "off":
        weight_BS, is_far_BS = corrected(batch, is_correction)
        loss_BS = weight_BS * loss_BS
        log["mismatch"] = losses.mean(batch["rollout_logps"] - batch["old_logps"], batch)
        log["bounded"] = losses.mean(is_far_BS, batch)
    is_gspo = policy_loss_type == "gspo"
    loss = MEANS["seq-mean-token-mean" if is_gspo else loss_agg_mode](loss_BS, batch)
    if kl_loss is not None:
        kl_BS = divergence(logps_BS, batch, kl_loss, is_unbiased=unbiased_gradient)
        loss = loss + KL * losses.mean(kl_BS, batch)
    if entropy_coef is not None:
        loss = loss - entropy_coef * losses.mean(losses.entropy(logits_BSV), batch)
    if aux_loss_coef:
        loss = loss + aux_loss_coef * balance(out, batch)
    return loss, log


# What entries are made with that are about something else.
OF_BALANCE: dict[str, Any] = {"aux_loss_coef": 0.01}
OF_MARGINS: dict[str, Any] = {"loss_type": "logexp", "margin_loss_enable": True}
EXPERTS = family("qwen3-moe")
POLICIES = any_family()
SCORED = any_family(head="SequenceClassification")
MARGINS = {"margins": row(0, 2)}
ACTIONS: dict[str, Column] = {
    "advantages": target(-2, 2),
    "old_logps": computed(losses.logps, nudge=OLD),
    "rollout_logps": computed(losses.logps, nudge=ACTED),
    "reference_logps": computed(losses.logps, nudge=OTHER),
}
VALUES = {"old_values": target(-2, 2), "returns": target(-2, 2)}
RECIPES = {
    "sft-balanced": Recipe(EXPERTS, partial(supervised, **OF_BALANCE)),
    "reward": Recipe(SCORED, reward, MARGINS, settings.REWARD),
    "reward-logexp": Recipe(SCORED, partial(reward, **OF_MARGINS), MARGINS, settings.FAMILIES),
    "dpo": Recipe(POLICIES, dpo, settings=settings.DPO),
    "dpo-balanced": Recipe(
        EXPERTS, partial(dpo, **OF_BALANCE), settings=settings.without_family(settings.DPO)
    ),
    "critic": Recipe(SCORED, critic, VALUES, settings.CRITIC),
    "actor": Recipe(POLICIES, actor, ACTIONS, settings.ACTOR),
    "actor-balanced": Recipe(
        EXPERTS, partial(actor, **OF_BALANCE), ACTIONS, settings.without_family(settings.ACTOR)
    ),
}
