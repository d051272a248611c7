"""One Ulysses step for any transformers model, on several losses, and what can be wrong with it.

`any_model.py:gpt_oss__grpo` is right; `any_model.py:gpt_oss__grpo__sinks_uncut` has that fault.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from harness.case import Case
from harness.recipes import Recipe, computed, losses, row, step, token
from harness.recipes.families import FAMILIES, family
from properties.planted import shard_losses as shards
from properties.planted.shard import Shard, summed


def train(
    model: Any,
    batch: dict[str, Tensor],
    mesh: Any,
    *,
    loss: Any,
    fault: str,
    shard: type[Shard] = Shard,
) -> Any:
    """One step on this rank: forward, backward, and the sum of gradients over all ranks."""
    share = loss(shard(model, batch, mesh, fault))
    share, metrics = share if isinstance(share, tuple) else (share, {})
    share.backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if fault == "vectors_not_summed" and parameter.ndim == 1:
            continue
        dist.all_reduce(parameter.grad)
        if fault == "gradients_halved":
            parameter.grad /= 2
    logged = share.detach() if fault == "loss_not_summed" else summed(share)
    if fault == "metric_of_a_rank":
        return logged, metrics
    if fault == "metrics_left_out":
        return logged
    if fault == "metric_misspelled":
        metrics = {f"{name}s": x for name, x in metrics.items()}
    return (logged, {name: summed(x) for name, x in metrics.items()}) if metrics else logged


OLD = {"advantages": row(-2, 2), "old_logps": computed(losses.logps)}
# So far that some targets and rows are clipped.
FAR_LOGPS = {"old_logps": computed(losses.logps, nudge=2.0**-5)}
FAR = OLD | FAR_LOGPS
REFERENCE = {"reference_logps": computed(losses.logps)}
TEACHER = {"teacher_logits": computed(losses.logits)}
# By name: the loss of a shard, that of plain training, and the columns of both.
LOSSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "supervised": (shards.supervised, losses.supervised, {}),
    "grpo": (shards.grpo, losses.grpo, OLD),
    "grpo_sequences": (shards.grpo_sequences, losses.grpo_sequences, OLD),
    "gspo": (shards.gspo, losses.gspo, FAR),
    **{
        f"grpo_{estimate.__name__}": (
            partial(shards.grpo_regularised, estimate=estimate.__name__),
            partial(losses.grpo_regularised, estimate=estimate),
            FAR | REFERENCE,
        )
        for estimate in (losses.k1, losses.k2, losses.k3)
    },
    "dpo": (shards.dpo, losses.dpo, REFERENCE),
    "reward_pairs": (shards.reward_pairs, losses.reward_pairs, {}),
    "distilled": (partial(shards.distilled, reverse=False), losses.distilled, TEACHER),
    "distilled_reverse": (
        partial(shards.distilled, reverse=True),
        partial(losses.distilled, reverse=True),
        TEACHER,
    ),
    "balanced": (shards.balanced, losses.balanced, {}),
    "balanced_z": (
        partial(shards.balanced, z=0.001),
        partial(losses.balanced, z=0.001),
        {},
    ),
    "ppo_critic": (
        shards.ppo_critic,
        losses.ppo_critic,
        {"rewards": token(), "old_values": computed(losses.values)},
    ),
    "ppo_actor": (
        shards.ppo_actor,
        losses.ppo_actor,
        FAR_LOGPS | {"rewards": token(), "old_values": token()},
    ),
}
# These are of values, and these of pairs of rows.
OF_VALUES, OF_PAIRS = ("ppo_critic", "reward_pairs"), ("dpo", "reward_pairs")


def in_pairs(case: Case) -> str | None:
    """Return a reason unless rows come in pairs, as a preference needs them."""
    return f"rows={len(case.rows)}: not in pairs" if len(case.rows) % 2 else None


def __getattr__(name: str) -> Any:
    """Return the step `FAMILY__LOSS` or `FAMILY__LOSS__FAULT`."""
    model, _, rest = name.partition("__")
    loss, _, fault = rest.partition("__")
    if model.replace("_", "-") not in FAMILIES or loss not in LOSSES:
        raise AttributeError(name)
    of_shard, plain, columns = LOSSES[loss]
    head = "TokenClassification" if loss in OF_VALUES else "CausalLM"
    recipe = Recipe(family(model.replace("_", "-"), head=head), plain, columns)
    taken = partial(train, loss=of_shard, fault=fault)
    taken.__name__ = name  # type: ignore[attr-defined]
    only = {"limits": "dp=1", "supports": in_pairs}
    return step(recipe, **(only if loss in OF_PAIRS else {}))(taken)  # type: ignore[arg-type]
