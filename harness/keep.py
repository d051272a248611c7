"""Failures kept: where `check`, `repro` and tests put what they found."""

from dataclasses import asdict
from pathlib import Path

from harness.campaign import WHOLE, Request, Shard
from harness.compare import Comparison
from harness.ranks.placement import Placement
from harness.ranks.pool import RankPool
from harness.report import DEFAULT_FOLDER, Origin, write_bundle
from harness.report.origin import versions


def keep(
    comparison: Comparison,
    pool: RankPool,
    *,
    campaign: Request | None = None,
    shard: Shard = WHOLE,
    test: str = "",
    blob: str = "",
    folder: Path = DEFAULT_FOLDER,
) -> str:
    """Write its bundle; where that is, or why there is none."""
    origin = Origin(
        device=pool.device,
        transport=pool.transport,
        ranks=pool.size,
        campaign={**asdict(campaign), "shard": str(shard)} if campaign else None,
        test=test,
        blob=blob,
        versions=versions() | _processor(pool.placement),
    )
    try:
        return str(write_bundle(comparison, folder, origin))
    except OSError as error:
        return f"could not be written: {error}"


def _processor(placement: Placement) -> dict[str, str]:
    if placement.on_cpu:
        return {}
    import torch

    device = placement.device
    return {device: torch.get_device_module(device).get_device_name()}
