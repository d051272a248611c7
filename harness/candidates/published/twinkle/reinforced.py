"""Steps of twinkle's losses of policies and of values, which recipes judge."""

from collections.abc import Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.twinkle import library
from harness.candidates.published.twinkle.batch import of_targets
from harness.candidates.published.twinkle.formulas import BAD, GOOD, LENGTH, LOW
from harness.candidates.published.twinkle.released import Released
from harness.candidates.published.twinkle.run import logged_as, take
from harness.recipes.batch import Batch

# What the release's own metrics call a clipped ratio differs by loss.
METRICS = {"GSPOLoss": "GSPOMetric", "CISPOLoss": "CISPOMetric"}
# By the names of a recipe, what is logged.
LOGGED = {
    "new": "train/mean_new_logp",
    "old": "train/mean_old_logp",
    "kl": "train/approx_kl",
    "clipped": "train/clip_ratio",
    "entropy": "train/entropy",
}
# What the losses take that is no setting of a case.
OPTIONS = {"epsilon": LOW, "tau_pos": GOOD, "tau_neg": BAD, "max_completion_length": LENGTH}


class ValueModel(Released, library.values.TransformersValueModel):  # type: ignore[misc]
    """The released model of values, whose constructor would make the head that is there."""


def grpo(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    loss: str,
    beta: float,
    temperature: float,
    packed: bool,
    **settings: Any,
) -> Any:
    """Take the step of GRPO or of what is derived from it, with one advantage for each row.

    What an old policy says of answers comes from a sampler; a reference answers itself.
    """

    def given(batch: Batch) -> dict[str, Any]:
        advantages = batch["advantages"][batch["row"].argsort()].tolist()
        return {"old_logps": of_targets(batch, "old_logps"), "advantages": advantages}

    logged = take(
        *(model, batches, mesh, loss, METRICS.get(loss, "GRPOMetric"), given),
        packed=packed,
        reference=(lambda answer: {"ref_logps": answer["logps"]}) if beta else None,
        temperature=temperature,
        beta=beta,
        **OPTIONS | settings,
    )
    return logged_as(logged, LOGGED)


def ppo(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    temperature: float,
    packed: bool,
    **settings: Any,
) -> Any:
    """Take the step of PPO's policy, with an advantage for each target."""

    def given(batch: Batch) -> dict[str, Any]:
        return {name: of_targets(batch, name) for name in ("old_logps", "advantages")}

    logged = take(
        *(model, batches, mesh, "PPOLoss", "PPOMetric", given),
        packed=packed,
        temperature=temperature,
        epsilon=LOW,
        **settings,
    )
    return logged_as(logged, LOGGED)


def value(
    model: Any, batches: Sequence[Batch], mesh: DeviceMesh, *, epsilon: float, packed: bool
) -> Any:
    """Take the step of PPO's critic."""

    def given(batch: Batch) -> dict[str, Any]:
        return {name: of_targets(batch, name) for name in ("old_values", "returns")}

    logged = take(
        *(model, batches, mesh, "PPOValueLoss", "PPOValueMetric", given),
        packed=packed,
        kind=ValueModel,
        epsilon=epsilon,
    )
    return float(logged["loss"])
