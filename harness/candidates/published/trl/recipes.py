"""What plain training is for the trainers of pairs: the loss of each, written for one device.

Legend: B rows.
"""

from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from harness.case import Case
from harness.recipes import Recipe, computed, losses
from harness.recipes.batch import Batch
from harness.recipes.families import family
from harness.recipes.recipe import Build

# What the guide of each trainer has: DPOConfig.beta, RewardConfig.center_rewards_coefficient.
BETA, CENTRE = 0.1, 0.01


def padding(build: Build) -> Build:
    """Build a model whose configuration knows the id of padding, by which it finds rows' ends."""

    @wraps(build)
    def built(case: Case) -> nn.Module:
        model: Any = build(case)
        model.config.pad_token_id = case.pad_id
        return model  # type: ignore[no-any-return]

    return built


def reward(model: Any, batch: Batch) -> Tensor:
    """Bradley-Terry, where the rewards of a pair should add up to zero."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    rewards_B = model(**given, use_cache=False).logits[:, 0]
    chosen, rejected = losses.in_pairs(rewards_B, batch)
    loss = -F.logsigmoid(chosen - rejected) + CENTRE * (chosen + rejected).square()
    return loss.mean()


def dpo(model: Any, batch: Batch) -> Tensor:
    """DPO, by how much likelier each row became than it is to the reference."""
    gain_B = losses.logps(model, batch).sum(1) - batch["reference_logps"]
    chosen, rejected = losses.in_pairs(gain_B, batch)
    return -F.logsigmoid(BETA * (chosen - rejected)).mean()


def logps_of_rows(model: Any, batch: Batch) -> Tensor:
    """The log-probability of all targets of each row -> B."""
    return losses.logps(model, batch).sum(1)


RECIPES = {
    "reward": Recipe(padding(family("llama", head="SequenceClassification")), reward),
    "dpo": Recipe(family("llama"), dpo, {"reference_logps": computed(logps_of_rows)}),
}
