"""Show the tables and notes at the end of `check` and `merge`. Needs no torch."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.against import IS_KEPT, ITSELF, compared_with
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, LIMIT, PLACEMENT_KEYS, Summary
from harness.campaign.tally import BUCKETS, OUTCOMES, Tally
from harness.console import empty_table, print_plain, print_table
from harness.names import short_names
from harness.uncompared import describe_uncompared

ENDINGS = {
    INTERRUPTED: "interrupted before all cases were judged; this is no pass",
    LIMIT: "--limit ended the run",
}
# How many situations that no judged case met are named; small campaigns leave out many.
MOST_UNMET = 5
MOST_REASONS = 10
# If a step computes in a dtype, some case uses at least this share of the dtype's budget.
LEAST_USED = 1e-4


def show(summary: Summary, console: Console) -> None:
    """Show the closing tables, and a note for each finding beside them."""
    print_table(console, _verdict_table(summary))
    if any(tally.used for tally in summary.tallies.values()):
        print_table(console, _error_table(summary))
    for candidate, tally in summary.tallies.items():
        print_plain(console, "".join(_candidate_notes(candidate, tally, summary.request)), end="")
    _show_situations(summary, console)
    _show_bounds(summary, console)
    if summary.placement:
        print_plain(console, f"\n{_describe_placement(dict(summary.placement))}")
    if summary.ended:
        judged = (
            "1 case was judged" if summary.cases == 1 else f"{summary.cases} cases were judged"
        )
        console.print(Text(f"\n{ENDINGS[summary.ended]}; {judged}", "bold"))
    if summary.unseen:
        print_plain(console, f"\n{summary.unseen}")
    reference = compared_with(summary.request.against)
    if reference:
        compared = [
            f"{name}: {_describe_compared(tally)}"
            for name, tally in summary.tallies.items()
            if tally.passed
        ]
        kept = [IS_KEPT] * any(tally.kept for tally in summary.tallies.values())
        print_plain(console, "\n".join(["", reference, *kept, *compared]))
    if summary.missing:
        missing = f"{_name_shards(summary.missing)} of {summary.of}"
        console.print(Text(f"\nmissing  {missing}: nothing was examined there", "bold red"))


def _candidate_notes(candidate: str, tally: Tally, request: Request) -> Iterator[str]:
    """Yield notes about cases of a candidate that were refused, hidden, known or failed."""
    if tally.refused:
        drawn = f"of {tally.verdicts.total()} cases that were drawn"
        yield _list_reasons(f"{candidate} does not support, {drawn}", tally.refused)
    yield from _unjudgeable_notes(candidate, tally)
    yield from _precision_notes(candidate, tally)
    if tally.uncompared:
        itself = request.against == ITSELF
        yield f"\n{candidate}: {describe_uncompared(tally.uncompared, itself=itself)}\n"
    if tally.known:
        yield _list_reasons(f"{candidate} fails as is listed of it", tally.known)
    if tally.marks and request.keep_going > 1:
        yield _list_reasons(f"{candidate}: cases that failed, by how", tally.marks)


def _show_bounds(summary: Summary, console: Console) -> None:
    """Show the bounds, and for whom, unless they are the same for all candidates."""
    names_by_text = defaultdict[str, list[str]](list)
    for name, tally in summary.tallies.items():
        names_by_text[tally.bounds.text()].append(name)
    for text, names in names_by_text.items():
        if text:
            who = "" if len(names_by_text) == 1 else f"{', '.join(names)}, "
            console.print(Text(f"\n{who}{text}"))


def _describe_compared(tally: Tally) -> str:
    """Describe how many gradients were compared: a step held to itself decides which it has."""
    noun = "gradient was" if tally.gradients == 1 else "gradients were"
    zero = f", {tally.zeros:,} of them zero everywhere" if tally.zeros else ""
    passed = "the case that passed" if tally.passed == 1 else f"{tally.passed:,} cases that passed"
    return f"{tally.gradients:,} {noun} compared in {passed}{zero}"


def _describe_placement(place: dict[str, str]) -> str:
    _, devices, transport, ranks = (place.pop(name) for name in PLACEMENT_KEYS)
    hardware = "".join(f", {name} {value}" for name, value in place.items())
    return f"{ranks} ranks on {devices} over {transport}{hardware}"


def show_failures(summary: Summary, console: Console) -> None:
    """Show the smallest failure of each candidate in full, and the commands for the others."""
    for tally in summary.tallies.values():
        for failure in tally.failures[:1]:
            print_plain(console, f"\n{failure['explanation']}")
        for failure in tally.failures[1:]:
            print_plain(console, f"  also    {failure['verdict']}  {failure['replay']}")


def show_bundles(summary: Summary, console: Console) -> None:
    """Show each failure in full, and its bundle.

    Failures share a bundle if the ranks could not start; then only the first one is shown.
    """
    failures = [failure for tally in summary.tallies.values() for failure in tally.failures]
    for failure in {failure["bundle"]: failure for failure in reversed(failures)}.values():
        print_plain(console, f"\n{failure['explanation']}\n  bundle  {failure['bundle']}")


def _unjudgeable_notes(candidate: str, tally: Tally) -> Iterator[str]:
    """Yield for each dtype how many cases rounding hid, and the tensor that it hid most often."""
    for dtype, hidden in tally.unjudgeable.items():
        (key, _), drawn = hidden.most_common(1)[0], tally.judged + tally.hidden
        yield (
            f"\n{candidate}: {hidden.total()} of {drawn} cases were not judgeable in {dtype}, "
            f"most often because rounding hides {key}\n"
        )


def _precision_notes(candidate: str, tally: Tally) -> Iterator[str]:
    """Yield a note for each dtype in which errors are too small for a step that computes in it."""
    for dtype, histogram in tally.used.items():
        if dtype != "fp64" and 0 < histogram.most < LEAST_USED:
            yield (
                f"\n{candidate}: no case used even a share of {LEAST_USED:g} of what {dtype} may "
                f"round; if it computes in more than {dtype}, this says nothing of {dtype}\n"
            )


def _name_shards(numbers: Sequence[int]) -> str:
    """Return 1, 2, 3 and 7 as `shards 1-3, 7`."""
    runs = groupby(enumerate(numbers), lambda numbered: numbered[1] - numbered[0])
    spans = [[number for _, number in run] for _, run in runs]
    listed = ", ".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)
    return f"shard{'s' if len(numbers) > 1 else ''} {listed}"


def _verdict_table(summary: Summary) -> Table:
    """Return the table of verdicts, with a line for each candidate."""
    noun = "case" if summary.cases == 1 else "cases"
    title = f"{summary.cases} {noun} in {summary.seconds:.1f} s"
    if summary.of > 1:
        title += f", {_name_shards(summary.shards)} of {summary.of}"
    table = empty_table(title)
    seen = {name for tally in summary.tallies.values() for name in tally.verdicts}
    columns = [name for name in OUTCOMES if name != "KNOWN" or name in seen]
    table.add_column("candidate", min_width=13, no_wrap=True)
    for name in (*columns, "elements", "used"):
        table.add_column(name.lower(), justify="right", no_wrap=True)
    short = short_names(summary.tallies)
    for candidate, tally in summary.tallies.items():
        counts = [str(tally.verdicts[name] or "·") for name in columns]
        table.add_row(Text(short[candidate]), *counts, f"{tally.elements:,}", f"{tally.most:.2g}")
    return table


def _list_reasons(title: str, counts: Counter[str]) -> str:
    """Return a title, and below it the most frequent reasons with their counts."""
    reasons = counts.most_common(MOST_REASONS)
    others = counts.total() - sum(count for _, count in reasons)
    rows = [*reasons, ("for other reasons", others)] if others else reasons
    return f"\n{title}\n" + "".join(f"{count:5}  {reason}\n" for reason, count in rows)


def _error_table(summary: Summary) -> Table:
    """Return a histogram of errors, with a line for each candidate and dtype."""
    table = empty_table("cases that passed, by their largest error as a share of what was allowed")
    table.add_column("candidate", min_width=13, no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for bound in BUCKETS:
        table.add_column(f"≤{bound:g}", justify="right", no_wrap=True)
    table.add_column("most", justify="right", no_wrap=True)
    short = short_names(summary.tallies)
    for candidate, tally in summary.tallies.items():
        for dtype, histogram in sorted(tally.used.items()):
            counts = [str(count or "·") for count in histogram.counts]
            table.add_row(Text(short[candidate]), dtype, *counts, f"{histogram.most:.2g}")
    return table


def _show_situations(summary: Summary, console: Console) -> None:
    """Show how many situations were met, and name some that were not.

    If all candidates failed, they were not judged on all cases, so nothing is shown.
    """
    if all(tally.failed for tally in summary.tallies.values()):
        return
    counts = summary.situations
    unmet = [name for name, count in counts.items() if not count]
    print_plain(console, f"\nsituations met: {len(counts) - len(unmet)} of {len(counts)}")
    for name in unmet[:MOST_UNMET]:
        print_plain(console, f"  {'refused' if summary.refused[name] else 'never  '}  {name}")
    if len(unmet) > MOST_UNMET:
        print_plain(console, f"  and {len(unmet) - MOST_UNMET} more, which --json lists")
