"""A policy that is trained on its own answers: every ratio is one, and the loss sums to zero.

`on_policy.py:right` is right; `on_policy.py:of_another_row` has another row's advantage.

Legend: B rows, S columns, L columns of this rank.
"""

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from harness.recipes import Recipe, row, step
from harness.recipes.batch import IGNORED, Batch
from properties.planted.styles import cut, gathering, sum_gradients, summed, use
from properties.planted.tiny import Tiny, next_labels


def ratios(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """The ratio of each target in fp32; the old policy is the one that is trained."""
    logp_BS = -F.cross_entropy(
        logits_BSV.float().movedim(-1, 1), labels_BS, ignore_index=IGNORED, reduction="none"
    )
    return (logp_BS - logp_BS.detach()).exp() * (labels_BS != IGNORED)


def advantages(rewards_B: Tensor) -> Tensor:
    rewards_B = rewards_B.float()
    return (rewards_B - rewards_B.mean()) / (rewards_B.std(unbiased=False) + 1e-4)


def policy_loss(model: Any, batch: Batch) -> Any:
    labels_BS, real_BS = next_labels(batch), batch["attention_mask"].bool()
    logits_BSV = model(batch["input_ids"], batch["position_ids"], real_BS)
    count_B = (labels_BS != IGNORED).sum(1).clamp(min=1)
    gains_B = advantages(batch["rewards"]) * ratios(logits_BSV, labels_BS).sum(1) / count_B
    return -gains_B.mean(), {"gain": gains_B.mean()}


def train(model: Any, batch: Batch, mesh: Any, *, by: int = 0) -> Any:
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    ids_BL, positions_BL, labels_BL, real_BS = cut(batch, group)
    sum_B = ratios(model(ids_BL, positions_BL, real_BS), labels_BL).sum(1)
    count_B = summed((labels_BL != IGNORED).sum(1)).clamp(min=1)
    share = -(sum_B * advantages(batch["rewards"]).roll(by) / count_B).sum() / len(count_B)
    share.backward()
    sum_gradients(model)
    return summed(share), {"gain": -summed(share)}


RECIPE = Recipe(Tiny, policy_loss, {"rewards": row(0, 1)})
# Its advantages are those of its own rows.
right = step(RECIPE, limits="dp=1")(train)
of_another_row = step(RECIPE, limits="dp=1")(partial(train, by=1))
