"""What plain training is for axolotl's trainers of rewards and of policies, for one device.

Legend: B rows, S columns, C classes. A number of a target stands in the target's own column.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.candidates.published.axolotl import formulas, settings
from harness.candidates.published.wiring.scaled import scaled
from harness.case import Case
from harness.recipes import Recipe, computed, losses, row, target
from harness.recipes.batch import Batch
from harness.recipes.families import any_family

BAD_AND_GOOD = 2


def classifier(case: Case, *, family: str) -> nn.Module:
    """A model that says of each token whether the step that ends there is good."""
    model: Any = any_family(head="TokenClassification")(case, family=family)
    model.config.num_labels = model.num_labels = BAD_AND_GOOD
    model.score = nn.Linear(model.config.hidden_size, BAD_AND_GOOD)
    whole: nn.Module = model
    return whole


def process_reward(model: Any, batch: Batch) -> Tensor:
    """Cross entropy of each step's end, averaged over the steps of a replica, then over these."""
    names = ("input_ids", "attention_mask", "position_ids")
    logits_BSC = model(**{name: batch[name] for name in names}, use_cache=False).logits
    is_good_BS = (batch["quality"] > 0).long()
    nll_BS = F.cross_entropy(logits_BSC.movedim(-1, 1).float(), is_good_BS, reduction="none")
    return formulas.of_replicas(nll_BS, batch)


def ebft(
    model: Any,
    batch: Batch,
    *,
    loss_type: str,
    scale_rewards: str,
    beta: float,
    temperature: float,
) -> Any:
    """GRPO in one of its variants, with rewards of pairs of answers to one prompt."""
    logits_BSV = losses.logits(model, batch) / temperature
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    advantages_B = formulas.advantages(batch, scale_rewards)
    loss_BS = formulas.POLICIES[loss_type](
        logps_BS, batch["old_logps"], advantages_B[:, None], batch
    )
    entropy_BS = losses.entropy(logits_BSV)
    log = {"entropy": losses.mean(entropy_BS, batch)}
    if beta:
        with torch.no_grad():
            reference_BSV = losses.logits(scaled(model, formulas.REFERENCE), batch) / temperature
        gain_BS = logps_BS - losses.picked(reference_BSV, batch["labels"])
        # A ratio makes its gradient that of the KL of an old policy's answers.
        kl_BS = losses.k3(gain_BS) * (logps_BS - batch["old_logps"]).exp()
        log["kl"] = losses.mean(kl_BS, batch)
        loss_BS = loss_BS + beta * kl_BS
    return formulas.MEANS[loss_type](loss_BS, batch), log


PROCESS_REWARD = Recipe(
    classifier, process_reward, {"quality": target(-1, 1)}, settings=settings.FAMILIES
)
EBFT = Recipe(
    any_family(),
    ebft,
    {
        "rewards": row(-1, 1),
        "old_logps": computed(losses.logps, nudge=formulas.OLD),
    },
    settings=settings.EBFT,
)
RECIPES = {"process-reward": PROCESS_REWARD, "ebft": EBFT}
