"""What plain training is for SkyRL's policy and critic, written for one device.

Legend: B rows, S columns, P micro-batches of all replicas, V vocabulary. A number of a target
stands in the target's own column.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.recipes import Recipe, computed, losses, row, target
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.families import family

# A policy's clipping from both sides and of bad actions, KL penalty and bonus for entropy.
LOW, HIGH, DUAL, KL, ENTROPY = 0.2, 0.28, 3.0, 0.1, 0.01
# What logits are divided by where it is not one.
TEMPERATURE = 0.8
# A critic's clipping: the release's own default.
VALUES = 0.2
# How far old weights are from new ones, so that a good part of the ratios is clipped.
OLD, REFERENCE = 2.0**-4, 2.0**-5

# mean(a number of each target, batch) -> one number.
Mean = Callable[[Tensor, Batch], Tensor]


def by_row(x_BS: Tensor, batch: Batch) -> Tensor:
    """The average over the targets of each row, then over rows."""
    return losses.mean_of_row(x_BS, batch).mean()


def by_micro_batch(x_BS: Tensor, batch: Batch) -> Tensor:
    """The average over the targets of each micro-batch, then over those of all replicas.

    SkyRL averages so on purpose what is no loss of a policy, and what it logs.
    """
    is_target_BS = batch["labels"] != IGNORED
    place_B2 = torch.stack([batch["replica"], batch["micro_batch"]], 1)
    part_B = place_B2.unique(dim=0, return_inverse=True)[1]
    is_in_PB = F.one_hot(part_B).T.float()
    sums_P = is_in_PB @ (x_BS * is_target_BS).sum(1).float()
    return (sums_P / (is_in_PB @ is_target_BS.sum(1).float()).clamp(min=1)).mean()


# Losses and estimates have the release's own bounds: a log ratio within 20, a KL of at most 10.
def ppo(gain_BS: Tensor, advantages_BS: Tensor, _: Batch) -> tuple[Tensor, Tensor]:
    """PPO's surrogate, and which targets are clipped; what a bad action loses has a bound."""
    loss_BS, is_clipped_BS = clipped(gain_BS.clamp(-20, 20).exp(), advantages_BS)
    bounded_BS = loss_BS.min(-advantages_BS * DUAL)
    return torch.where(advantages_BS < 0, bounded_BS, loss_BS), is_clipped_BS


def gspo(gain_BS: Tensor, advantages_BS: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """GSPO: one ratio for each row, with the gradient of each of its targets."""
    of_row_B1 = losses.mean_of_row(gain_BS, batch).detach()[:, None]
    ratio_BS = (gain_BS - gain_BS.detach() + of_row_B1).clamp(max=10).exp()
    return clipped(ratio_BS, advantages_BS)


def clipped(ratio_BS: Tensor, advantages_BS: Tensor) -> tuple[Tensor, Tensor]:
    free_BS = -ratio_BS * advantages_BS
    near_BS = -ratio_BS.clamp(1 - LOW, 1 + HIGH) * advantages_BS
    return torch.max(free_BS, near_BS), near_BS > free_BS


def k3(gain_BS: Tensor) -> Tensor:
    return losses.k3(gain_BS.clamp(-20, 20)).clamp(max=10)


def policy(
    model: Any,
    batch: Batch,
    loss: Callable[..., tuple[Tensor, Tensor]] = ppo,
    mean: Mean = losses.mean,
    estimate: Callable[[Tensor], Tensor] = k3,
    temperature: float = 1.0,
    bonus: float = ENTROPY,
) -> Any:
    """A policy's loss, with a penalty for the KL from a reference and a bonus for entropy."""
    logits_BSV = losses.logits(model, batch) / temperature
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    advantages = batch["advantages"]
    advantages_BS = advantages if advantages.ndim > 1 else advantages[:, None].expand_as(logps_BS)
    loss_BS, is_clipped_BS = loss(logps_BS - batch["old_logps"], advantages_BS, batch)
    log = {
        "policy": mean(loss_BS, batch),
        "kl": by_row(estimate(logps_BS - batch["reference_logps"]), batch),
        "entropy": by_micro_batch(losses.entropy(logits_BSV), batch),
        "clipped": by_micro_batch(is_clipped_BS, batch),
    }
    return log["policy"] + KL * log["kl"] - bonus * log["entropy"], log


def own_policy(model: Any, batch: Batch, temperature: float = 1.0) -> Any:
    """The policy's loss where the policy is its own old one and its own reference."""
    own_BS = losses.picked(losses.logits(model, batch) / temperature, batch["labels"]).detach()
    columns = {"old_logps": own_BS, "reference_logps": own_BS}
    loss, log = policy(model, batch | columns, temperature=temperature)
    return loss, log | {"old_logps": losses.mean(own_BS * batch["advantages"], batch)}


def values(model: Any, batch: Batch) -> Tensor:
    """What the critic expects before each target -> BS."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    hidden_BSD = model.model(**given, use_cache=False).last_hidden_state
    return F.pad(model.score(hidden_BSD)[:, :-1, 0], (1, 0))


def value(model: Any, batch: Batch) -> Any:
    """PPO's clipped loss of values."""
    new_BS, old_BS, returns_BS = values(model, batch), batch["old_values"], batch["returns"]
    near_BS = old_BS + (new_BS - old_BS).clamp(-VALUES, VALUES)
    far_BS, near_BS = (new_BS - returns_BS).square(), (near_BS - returns_BS).square()
    log = {
        "values": by_micro_batch(new_BS, batch),
        "clipped": by_micro_batch(near_BS > far_BS, batch),
    }
    return by_row(torch.max(near_BS, far_BS), batch) / 2, log


def own_value(model: Any, batch: Batch) -> Any:
    """The critic's loss around values that it has itself computed before the step."""
    own_BS = values(model, batch).detach()
    columns = {"old_values": own_BS, "returns": own_BS + batch["advantages"]}
    loss, log = value(model, batch | columns)
    return loss, log | {"old_values": losses.mean(own_BS * batch["advantages"], batch)}


def tempered_logps(model: Any, batch: Batch) -> Tensor:
    return losses.picked(losses.logits(model, batch) / TEMPERATURE, batch["labels"])


def others(logps: Callable[[Any, Batch], Tensor]) -> dict[str, Any]:
    """What an old policy and a reference say of each target."""
    columns = {"old_logps": OLD, "reference_logps": REFERENCE}
    return {name: computed(logps, nudge=nudge) for name, nudge in columns.items()}


ADVANTAGES = {"advantages": target(-2, 2)}
TEMPERED = {"advantages": row(-2, 2)} | others(tempered_logps)
POLICY = family("llama")
# Its head has no bias.
CRITIC = family("llama", head="SequenceClassification")
GSPO = partial(policy, loss=gspo, mean=by_row, estimate=losses.k2, temperature=TEMPERATURE)
TOKENS = Recipe(POLICY, partial(policy, bonus=0.0), ADVANTAGES | others(losses.logps))

RECIPES = {
    "policy": Recipe(POLICY, policy, ADVANTAGES | others(losses.logps)),
    "policy-gspo": Recipe(POLICY, GSPO, TEMPERED),
    "policy-tokens": TOKENS,
    "policy-tokens-log": TOKENS,
    "policy-own": Recipe(POLICY, own_policy, ADVANTAGES),
    "policy-tempered": Recipe(POLICY, partial(own_policy, temperature=TEMPERATURE), ADVANTAGES),
    "value": Recipe(CRITIC, value, {"old_values": target(-2, 2), "returns": target(-2, 2)}),
    "value-own": Recipe(CRITIC, own_value, ADVANTAGES),
}
