"""What plain training is for the trainers whose losses a case cannot express.

Legend: B rows, S columns, D width. A number of a target stands in the target's own column.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.recipes import Recipe, computed, losses, row, target
from harness.recipes.batch import Batch
from harness.recipes.families import family

# DPO's; then PPO's, for clipped values, the KL penalty and the bonus for entropy.
BETA, EPSILON, KL, ENTROPY = 0.1, 0.2, 0.1, 0.01


def scores(model: Any, batch: Batch) -> Tensor:
    """What the head of one number says of each token -> BS."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    hidden_BSD = model.model(**given, use_cache=False).last_hidden_state
    scores_BS: Tensor = model.score(hidden_BSD)[..., 0]
    return scores_BS


def reward(model: Any, batch: Batch) -> Tensor:
    """Bradley-Terry, of what is said of the last token of each row."""
    place_S = torch.arange(1, batch["input_ids"].shape[1] + 1, device=batch["input_ids"].device)
    last_B1 = (batch["attention_mask"] * place_S).argmax(1, keepdim=True)
    chosen, rejected = losses.in_pairs(scores(model, batch).gather(1, last_B1)[:, 0], batch)
    return -F.logsigmoid(chosen - rejected).mean()


def dpo(model: Any, batch: Batch) -> Tensor:
    """DPO, by how much likelier each row became than it is to the reference."""
    gain_B = (losses.logps(model, batch) - batch["reference_logps"]).sum(1)
    chosen, rejected = losses.in_pairs(gain_B, batch)
    return -F.logsigmoid(BETA * (chosen - rejected)).mean()


def critic(model: Any, batch: Batch) -> Tensor:
    """PPO's clipped loss of values; that of a target is what is said of the token before it."""
    values_BS = F.pad(scores(model, batch)[:, :-1], (1, 0))
    old_BS, returns_BS = batch["old_values"], batch["returns"]
    near_BS = old_BS + (values_BS - old_BS).clamp(-EPSILON, EPSILON)
    errors_BS = torch.max((near_BS - returns_BS).square(), (values_BS - returns_BS).square())
    return losses.mean(errors_BS, batch) / 2


def actor(model: Any, batch: Batch) -> Tensor:
    """PPO's surrogate, with a penalty for the KL from a reference and a bonus for entropy.

    OpenRLHF caps the log ratio at 20 and the KL of a token at 10, on purpose.
    """
    logits_BSV = losses.logits(model, batch)
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    gain_BS = (logps_BS - batch["old_logps"]).clamp(-20, 20)
    loss_BS, _ = losses.surrogate(gain_BS, batch["advantages"][:, None], EPSILON)
    kl_BS = losses.k3((logps_BS - batch["reference_logps"]).clamp(min=-10)).clamp(max=10)
    bonus_BS = ENTROPY * losses.entropy(logits_BSV)
    return losses.mean(loss_BS + KL * kl_BS - bonus_BS, batch)


SCORED = family("llama", head="SequenceClassification")
RECIPES = {
    "reward": Recipe(SCORED, reward),
    "dpo": Recipe(family("llama"), dpo, {"reference_logps": computed(losses.logps)}),
    "critic": Recipe(SCORED, critic, {"old_values": target(-2, 2), "returns": target(-2, 2)}),
    "actor": Recipe(
        family("llama"),
        actor,
        {
            "advantages": row(-2, 2),
            "old_logps": computed(losses.logps),
            "reference_logps": computed(losses.logps, nudge=2.0**-5),
        },
    ),
}
