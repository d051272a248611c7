"""Steps of twinkle's losses of pairs, which recipes judge."""

from collections.abc import Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.twinkle.formulas import BETA, MARGIN, ODDS, SIMPO
from harness.candidates.published.twinkle.run import logged_as, take
from harness.recipes.batch import Batch

# By the names of a recipe, what is logged.
LOGGED = {
    f"{what}_{side}": f"{what}/{side}"
    for what in ("logps", "rewards")
    for side in ("chosen", "rejected")
}
# What the losses without a reference take.
OPTIONS: dict[str, dict[str, Any]] = {
    "SimPOLoss": {"beta": SIMPO, "gamma": MARGIN},
    "CPOLoss": {"beta": BETA, "bc_coef": 1.0},
    "ORPOLoss": {"lambda_orpo": ODDS},
}


def nothing(_batch: Batch) -> dict[str, Any]:
    """Pairs have nothing beside their rows."""
    return {}


def dpo(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    reference_free: bool,
    packed: bool,
    **settings: Any,
) -> Any:
    """Take the step of DPO in one of its variants."""
    logged = take(
        *(model, batches, mesh, "DPOLoss", "DPOMetric", nothing),
        packed=packed,
        reference=None if reference_free else lambda answer: {"ref_outputs": answer},
        beta=BETA,
        reference_free=reference_free,
        **settings,
    )
    return logged_as(logged, LOGGED)


def pairs(
    model: Any, batches: Sequence[Batch], mesh: DeviceMesh, *, loss: str, packed: bool
) -> Any:
    """Take the step of a loss without a reference."""
    logged = take(
        *(model, batches, mesh, loss, "DPOMetric", nothing), packed=packed, **OPTIONS[loss]
    )
    return logged_as(logged, LOGGED)
