"""Goldens of one device: `golden generate --out` records them, `golden verify` checks them.

They hold what a candidate computed on that device in a lower precision than fp64.
"""

from typing import TYPE_CHECKING, Any

from harness.against import PLAIN
from harness.commands.golden.options import Generate, Verify
from harness.commands.golden.own import find_owners
from harness.commands.options import (
    DIVERGED,
    FAULT,
    PASSED,
    answer,
    print_json,
)
from harness.commands.ranks import open_pool
from harness.commands.values import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.golden import Golden

Goldens = dict[str, "Golden"]


def record(options: Generate, folder: "Path", goldens: Goldens) -> int:
    """Run a candidate on every golden, and store what it computes in a new folder."""
    from rich.console import Console

    from harness.candidates import locate
    from harness.console import print_plain
    from harness.golden import Store, store_files
    from harness.golden.provenance import commit, fingerprint
    from harness.golden.recorded import record
    from harness.judge import Session

    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"--out={folder}: is not empty; name a new folder")
    candidate, *others = options.candidate or ("native-gather",)
    if others:
        raise UsageError(f"--candidate={others[0]}: with --out, name one candidate")
    with open_pool(options, options.ranks, [candidate]) as pool:
        pool.require_ready()
        place = pool.place
        made = fingerprint(place)
        checked_out = commit(options.store)
        recorded, left_out = record(
            goldens,
            locate(candidate),
            options.dtype,
            made,
            checked_out,
            Session(pool),
            against=options.against or PLAIN,
        )
    Store(folder).write(store_files(recorded))
    if options.json:
        print_json(
            {"recorded": sorted(recorded), "left_out": left_out, "made": made, "placement": place}
        )
        return PASSED
    lines = [f"{name}: left out, {why}" for name, why in left_out.items()]
    for line in (*lines, f"{len(recorded)} of {len(goldens)} goldens recorded in {folder}"):
        print_plain(Console(), line)
    return PASSED


def verify(options: Verify, goldens: Goldens) -> int:
    """Compute all goldens again on this device, and report which changes matter."""
    from rich.console import Console

    from harness.compare import Change
    from harness.golden import BadGolden
    from harness.golden.provenance import fingerprint
    from harness.golden.recorded import compare_recorded, is_recorded
    from harness.golden.table import show_compared, show_together
    from harness.golden.verify import GoldenResults
    from harness.judge import Session
    from harness.report import comparison_record

    for name, golden in goldens.items():
        if not is_recorded(golden):
            raise BadGolden(f"{name}: it was not recorded, unlike others here; use two stores")
    # Only for its errors: the code of an owner may not run, or a named candidate owns no golden.
    find_owners(options, goldens)
    with open_pool(options, options.ranks) as pool:
        pool.require_ready()
        place = pool.place
        changes = list(compare_recorded(goldens, fingerprint(place), Session(pool)))
    runs = GoldenResults.of({name: comparison for name, _, _, comparison in changes})
    if not options.json:
        show_compared(changes, Console())
        show_together(runs, Console())
    failures = {
        name: comparison_record(comparison)
        for name, change, _, comparison in changes
        if change is Change.SEMANTIC
    }
    is_wrong = runs.leans or any(change.failed for _, change, _, _ in changes)
    status = DIVERGED if is_wrong else FAULT if runs.unexamined else PASSED
    document = {
        "goldens": [_change_record(*change) for change in changes],
        "failures": failures,
        "leans": runs.leans,
        "unexamined": runs.unexamined,
        "placement": place,
    }
    return answer(options, document, status)


def _change_record(name: str, change: str, why: str, comparison: Any) -> dict[str, str]:
    verdict = comparison.verdict.name
    return {"name": name, "change": str(change), "why": why, "verdict": verdict}
