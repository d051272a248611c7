"""Failures kept: where `check`, `repro` and tests put what they found."""

from pathlib import Path
from typing import Any

from harness.compare import Comparison
from harness.failure.bundle.folder import DEFAULT_FOLDER
from harness.failure.bundle.origin import Origin, versions
from harness.failure.bundle.write import write_bundle
from harness.ranks.pool import RankPool

# Parts of a pool's place that have fields of their own in a bundle.
PLACED = {"device", "devices", "transport", "ranks"}


def keep(
    comparison: Comparison,
    pool: RankPool,
    *,
    campaign: dict[str, Any] | None = None,
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
        against=comparison.against,
        campaign=campaign,
        test=test,
        blob=blob,
        versions=versions() | {name: place[name] for name in place.keys() - PLACED},
    )
    try:
        return str(write_bundle(comparison, folder, origin))
    except Exception as error:  # noqa: BLE001 - the failure itself must still be told
        return f"could not be written: {type(error).__name__}: {error}"
