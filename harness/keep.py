"""Failures kept: where `check`, `repro` and tests put what they found."""

from dataclasses import asdict
from pathlib import Path

from harness.campaign import WHOLE, Request, Shard
from harness.compare import Comparison
from harness.ranks.pool import RankPool
from harness.report import DEFAULT_FOLDER, Origin, write_bundle
from harness.report.origin import versions

# Of a pool's place, what a bundle has in fields of its own.
PLACED = {"device", "devices", "transport", "ranks"}


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
    place = pool.place
    origin = Origin(
        device=pool.device,
        transport=pool.transport,
        ranks=pool.size,
        campaign={**asdict(campaign), "shard": str(shard)} if campaign else None,
        test=test,
        blob=blob,
        versions=versions() | {name: place[name] for name in place.keys() - PLACED},
    )
    try:
        return str(write_bundle(comparison, folder, origin))
    except Exception as error:  # noqa: BLE001 - the failure itself must still be told
        return f"could not be written: {type(error).__name__}: {error}"
