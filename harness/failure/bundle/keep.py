"""Write the bundle of a failure that `check`, `repro` or a test found on a pool."""

from pathlib import Path
from typing import Any

from harness.compare import Comparison
from harness.failure.bundle.folder import DEFAULT_FOLDER
from harness.failure.bundle.origin import Origin, versions
from harness.failure.bundle.write import write_bundle
from harness.ranks.pool import RankPool

# Parts of a pool's place that have their own fields in an origin, or that it leaves out.
NOT_VERSIONS = {"device", "devices", "transport", "ranks"}


def keep_bundle(
    comparison: Comparison,
    pool: RankPool,
    *,
    campaign: dict[str, Any] | None = None,
    test: str = "",
    blob: str = "",
    folder: Path = DEFAULT_FOLDER,
) -> str:
    """Write its bundle; return the path, or a sentence that says why it could not be written."""
    place = pool.place
    origin = Origin(
        device=pool.device,
        transport=pool.transport,
        ranks=pool.size,
        against=comparison.against,
        campaign=campaign,
        test=test,
        blob=blob,
        versions=versions() | {name: place[name] for name in place.keys() - NOT_VERSIONS},
    )
    try:
        return str(write_bundle(comparison, folder, origin))
    except Exception as error:  # noqa: BLE001 - the failure itself must still be reported
        return f"could not be written: {type(error).__name__}: {error}"
