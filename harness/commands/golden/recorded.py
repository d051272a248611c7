"""`golden generate --out` and `golden verify` of what it wrote: one device's own tensors."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.commands.options import DIVERGED, PASSED, UsageError, answer, print_json
from harness.commands.ranks import open_pool

if TYPE_CHECKING:
    from harness.golden import Golden

Goldens = dict[str, "Golden"]


def record(options: argparse.Namespace, goldens: Goldens) -> int:
    """Have a candidate compute all goldens on a device, and keep what it says."""
    from rich.console import Console

    from harness.campaign.table import say
    from harness.golden import Store, as_files
    from harness.golden.provenance import commit, fingerprint
    from harness.golden.recorded import record

    folder = Path(options.out)
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"--out={options.out}: is not empty; name a new folder")
    with open_pool(options, options.ranks, [options.candidate]) as pool:
        pool.require_ready()
        place = pool.place
        made = fingerprint(place)
        checked_out = commit(Path(options.store))
        recorded, left_out = record(
            goldens, options.candidate, options.dtype, made, checked_out, pool
        )
    Store(folder).write(as_files(recorded))
    if options.json:
        print_json(
            {"recorded": sorted(recorded), "left_out": left_out, "made": made, "placement": place}
        )
        return PASSED
    lines = [f"{name}: left out, {why}" for name, why in left_out.items()]
    for line in (*lines, f"{len(recorded)} of {len(goldens)} goldens recorded in {folder}"):
        say(Console(), line)
    return PASSED


def verify(options: argparse.Namespace, goldens: Goldens) -> int:
    """Compute all again on the device at hand, and say what the difference means."""
    from rich.console import Console

    from harness.candidates.registry import vouched_for
    from harness.compare import Change
    from harness.golden import BadGolden
    from harness.golden.provenance import fingerprint
    from harness.golden.recorded import CANDIDATE, compared, is_recorded
    from harness.golden.table import show_compared
    from harness.report import comparison_record

    typed = options.candidate or []
    for name, golden in goldens.items():
        if not is_recorded(golden):
            raise BadGolden(f"{name}: nobody recorded it, unlike others here; use two stores")
        vouched_for(golden.stored.made[CANDIDATE], f"{options.store}: {name}", typed)
    with open_pool(options, options.ranks) as pool:
        pool.require_ready()
        place = pool.place
        moved = list(compared(goldens, fingerprint(place), pool))
    if not options.json:
        show_compared(moved, Console())
    failures = {
        name: comparison_record(comparison)
        for name, change, _, comparison in moved
        if change is Change.SEMANTIC
    }
    told = [_told(*each) for each in moved]
    status = DIVERGED if any(change.failed for _, change, _, _ in moved) else PASSED
    return answer(options, {"goldens": told, "failures": failures, "placement": place}, status)


def _told(name: str, change: str, why: str, comparison: Any) -> dict[str, str]:
    verdict = comparison.verdict.name
    return {"name": name, "change": str(change), "why": why, "verdict": verdict}
