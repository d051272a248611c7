"""Goldens, and how candidates agree with them, printed for people."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.against import ITSELF, compared_with
from harness.compare import Change, Comparison, Drift
from harness.console import print_plain
from harness.golden.contents import Golden
from harness.golden.own import candidate_of
from harness.golden.verify import GoldenResults
from harness.report import explain
from harness.uncompared import describe_uncompared


def show_goldens(goldens: Mapping[str, Golden], console: Console) -> None:
    """Print every golden with its comment."""
    for name, golden in goldens.items():
        vector = golden.vector
        hunts = f", hunts {' '.join(vector.hunts)}" if vector.hunts else ""
        owner = f", of {candidate_of(golden)}" if candidate_of(golden) else ""
        head = Text.assemble((name, "bold"), f"  {vector.case.tokens} tokens{hunts}{owner}")
        console.print(head, Padding(vector.comment, (0, 4)), highlight=False)
    console.print(f"{len(goldens)} goldens", highlight=False)


def show_drifts(
    drifts: Mapping[str, Drift], written: Sequence[str], refused: Sequence[str], console: Console
) -> None:
    """Print the goldens that moved, and how many were written or must be accepted first."""
    for name, moved in drifts.items():
        if moved.change is not Change.NONE:
            print_plain(console, f"{name}: {moved}")
    same = sum(1 for moved in drifts.values() if moved.change is Change.NONE)
    if drifts:
        print_plain(console, f"{same} of {len(drifts)} goldens come out the same in every bit")
    if written:
        print_plain(console, f"{len(written)} goldens written")
    if refused:
        print_plain(
            console,
            f"{len(refused)} goldens would change their meaning; nothing is written. If that is "
            "meant, run `golden generate --accept --reason TEXT`",
        )


def show_compared(seen: Sequence[tuple[str, Change, str, Comparison]], console: Console) -> None:
    """Print what changed in recorded goldens."""
    for name, change, why, comparison in seen:
        if change is Change.SEMANTIC:
            print_plain(console, f"{name}: {change}\n{explain(comparison)}\n")
        elif change is not Change.NONE:
            print_plain(console, f"{name}: {change}: {why}")
    counts = Counter(change for _, change, _, _ in seen)
    print_plain(
        console, "; ".join(f"{change}: {counts[change]} of {len(seen)}" for change in Change)
    )
    if counts[Change.CHANGED]:
        print_plain(
            console,
            "The candidate changed, or a library that it uses; if that is meant, record it "
            "again with `golden generate --out DIR`",
        )


def show_verified(verified: GoldenResults, doubted: Mapping[str, str], console: Console) -> None:
    """Print the failures of candidates, and the totals of all runs."""
    for name, why in doubted.items():
        print_plain(console, f"{name}: {why}; see `golden diff`")
    for name, failure in verified.failures.items():
        print_plain(console, f"golden {name}\n{failure['explanation']}\n")
    for verdict, reasons in (("KNOWN", verified.listed), ("UNSUPPORTED", verified.refused)):
        for reason, count in sorted(reasons.items()):
            print_plain(console, f"{verdict}: {count} x {reason}")
    for against, count in verified.against.items():
        if reference := compared_with(against):
            print_plain(console, f"{count} runs are {reference}")
    for name, keys in verified.uncompared.items():
        print_plain(
            console, f"{name}: {describe_uncompared([*keys], itself=verified.against[ITSELF] > 0)}"
        )
    counts = ", ".join(
        f"{count} {verdict}" for verdict, count in sorted(verified.verdicts.items())
    )
    print_plain(
        console,
        f"{verified.goldens} goldens, {sum(verified.verdicts.values())} runs: {counts or 'none'}; "
        f"{verified.elements:,} elements examined; {verified.seconds:.0f} s",
    )
    if doubted:
        print_plain(
            console, f"DIVERGED: {len(doubted)} of {verified.goldens} goldens, as is said above"
        )
    show_together(verified, console)


def show_together(verified: GoldenResults, console: Console) -> None:
    """Print what only all runs together show: tensors that lean, and what was not examined."""
    for lean in verified.leans:
        print_plain(
            console, f"DIVERGED: off by the same in every run, and too little for one: {lean}"
        )
    if verified.unexamined:
        print_plain(console, f"FAULT: {'; '.join(verified.unexamined)}")
