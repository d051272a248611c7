"""Show the tables and sentences at the end of `check` and `merge`. Needs no torch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.against import IS_KEPT, ITSELF, compared_with
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, LIMIT, PLACEMENT_KEYS, Summary
from harness.campaign.tally import BUCKETS, OUTCOMES, PASSING, Tally, worst
from harness.names import short_names
from harness.uncompared import describe_uncompared

ENDINGS = {
    INTERRUPTED: "interrupted before all cases were judged; this is no pass",
    LIMIT: "--limit ended the run",
}
# Shown as the count of a situation that no case met, judged or refused.
NEVER = "never"
LEAVE_OUT = "Leave it out with --sp, --dtype, --loss and --set"
# Spaces between two columns of situations.
COLUMN_GAP = 4
MOST_REASONS = 10
MOST_LEANS = 3
# If no larger share of the cases is not judgeable in its dtype, the last line does not warn.
MOST_HIDDEN = 0.1
# If a step computes in a dtype, some case uses at least this share of the dtype's budget.
LEAST_USED = 1e-4
# Columns of a console on which every table fits.
UNLIMITED_WIDTH = 10_000


def show(summary: Summary, console: Console) -> None:
    """Show the closing tables, and a note for each finding beside them."""
    print_table(console, _verdict_table(summary))
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
            f"{name}: {_describe_compared(tally)}" for name, tally in summary.tallies.items()
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
    """Show the bounds once, or for each candidate if they were judged on different cases."""
    texts = {name: tally.bounds.text() for name, tally in summary.tallies.items()}
    if len({*texts.values()}) == 1:
        texts = {"": next(iter(texts.values()))}
    for name, text in texts.items():
        if text:
            console.print(Text(f"\n{name and name + ', '}{text}"))


def _describe_compared(tally: Tally) -> str:
    """Describe how many gradients were compared: a step held to itself decides which it has."""
    noun = "gradient was" if tally.gradients == 1 else "gradients were"
    zero = f", {tally.zeros:,} of them zero everywhere" if tally.zeros else ""
    return f"{tally.gradients:,} {noun} compared in {tally.passed:,} cases{zero}"


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


def closing(summary: Summary, status: int) -> str:
    """Return the last line: the exit status, and why it is that."""
    is_cut_short = summary.ended == LIMIT
    tallies = summary.tallies.items()
    reasons = [
        why
        for name, tally in tallies
        if (why := _why_no_pass(name, tally, is_cut_short=is_cut_short))
    ]
    warnings = [warning for name, tally in tallies if (warning := _hidden_warning(name, tally))]
    if status == 0 and reasons:
        reasons = ["every case passed, but for what is listed as known"]
    if summary.missing:
        reasons.append("shards are missing")
    if summary.undrawn:
        drawn = "; ".join(f"no case with {value} was drawn" for value in summary.undrawn)
        reasons.append(f"{drawn}: ask for more --cases")
    if summary.ended == INTERRUPTED:
        reasons.append("interrupted")
    passed = "every case that was judged passed" if summary.ended else "every case passed"
    return f"exit status {status}: {'; '.join([*(reasons or [passed]), *warnings])}"


def _why_no_pass(candidate: str, tally: Tally, *, is_cut_short: bool) -> str:
    """Return why a candidate did not pass, or an empty text.

    `is_cut_short` is whether --limit ended the run.
    """
    if tally.verdict in PASSING:
        return ""
    if not tally.verdicts:
        return f"{candidate} was given no case"
    if tally.failures:
        kinds = {failure["verdict"] for failure in tally.failures}
        return f"{candidate} is {worst(kinds)} on {tally.failures[0]['case']}"
    if tally.lacking or not tally.judged:
        return _why_too_few(candidate, tally)
    return f"{candidate} {_why_over_all_cases(tally, is_cut_short=is_cut_short)}"


def _why_over_all_cases(tally: Tally, *, is_cut_short: bool) -> str:
    """Return why a candidate did not pass although it may have passed every single case."""
    if tally.leans:
        leans = "; ".join(tally.leans[:MOST_LEANS])
        return f"is off by the same in every case, and by too little to be told in one: {leans}"
    if tally.is_unshared:
        return (
            f"shared nothing: in none of {tally.shared} cases at sp > 1 did one rank need "
            "anything of another"
        )
    if tally.unexamined:
        return (
            f"was not judged on enough of what was asked for: {'; '.join(tally.unexamined)}. "
            + ("Raise --limit" if is_cut_short else f"{LEAVE_OUT}, or ask for more --cases")
        )
    forgiven = "which passes with --known pass" if tally.passed else "and passes nothing"
    return f"fails as is listed of it, {forgiven}"


def _why_too_few(candidate: str, tally: Tally) -> str:
    """Return why a candidate was judged on fewer cases than requested."""
    if tally.hidden > tally.refused.total():
        return (
            f"{candidate} could be judged on {tally.judged or 'none'} of "
            f"{tally.judged + tally.hidden} cases"
        )
    drawn, (reason, count) = tally.verdicts.total(), tally.refused.most_common(1)[0]
    wanted = tally.judged + tally.lacking
    return (
        f"{candidate} supports {tally.judged or 'none'} of {drawn} cases that were drawn"
        f"{f', too few to be judged on {wanted}' if tally.lacking else ''}; {count} times because "
        f"of '{reason}': leave such cases out with --loss, --dtype, --sp, --dp, --ranks, --kernel "
        "and --set"
    )


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


def _hidden_warning(candidate: str, tally: Tally) -> str:
    """Return a warning if too many cases were not judgeable, or an empty text."""
    if tally.hidden <= MOST_HIDDEN * (tally.judged + tally.hidden):
        return ""
    dtypes = ", ".join(tally.unjudgeable)
    return (
        f"more than a tenth of the cases of {candidate} were not judgeable in {dtypes}: ask for a "
        "dtype that rounds less"
    )


def print_table(console: Console, table: Table) -> None:
    """Print a table if all of it fits the width; else a line for each row, so that none is cut."""
    unlimited = console.options.update(width=UNLIMITED_WIDTH)
    if console.measure(table, options=unlimited).maximum <= console.width:
        console.print(table)
        return
    heads = [str(column.header) for column in table.columns]
    print_plain(console, f"\n{table.title}")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = map(str, row)
        fields = (f"{head} {cell}" for head, cell in zip(heads[1:], others, strict=True))
        filled = [field for field in fields if not field.endswith("·")]
        print_plain(console, f"  {first}: {', '.join(filled)}")


def print_plain(console: Console, text: str, end: str = "\n") -> None:
    """Print text that a user may copy: neither wrapped nor coloured, whatever it contains."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True, end=end)


def empty_table(title: str) -> Table:
    """Return an empty table with a title, and a rule under its heads only."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
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
    """Show the situations, unless all candidates failed and so were not judged on all cases."""
    if not all(tally.failed for tally in summary.tallies.values()):
        console.print(_situation_table(summary, console.width))


def _situation_table(summary: Summary, width: int) -> Table:
    """Return the table of situations, in two columns if the console is wide enough."""
    counts = summary.situations
    met = sum(1 for count in counts.values() if count)
    texts = {name: _format_count(count, summary.refused[name]) for name, count in counts.items()}
    count_width = max(map(len, (*texts.values(), NEVER)))
    name_width = max(map(len, counts), default=0)
    sides = 2 if 2 * (count_width + 1 + name_width) + COLUMN_GAP <= width else 1
    table = Table(
        title=f"situations met: {met} of {len(counts)}",
        title_justify="left",
        show_header=False,
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for side in range(sides):
        table.add_column(
            justify="right", no_wrap=True, min_width=count_width + (COLUMN_GAP - 1) * side
        )
        table.add_column(no_wrap=sides == 2)
    cells = [
        (Text(texts[name], "" if count else "bold yellow"), Text(name))
        for name, count in counts.items()
    ]
    height = -(-len(cells) // sides)
    columns = [cells[side * height : (side + 1) * height] for side in range(sides)]
    for row in zip_longest(*columns, fillvalue=(Text(), Text())):
        table.add_row(*(cell for pair in row for cell in pair))
    return table


def _format_count(count: int, refused: int) -> str:
    """Return the count of a situation; a word in its place warns that no judged case met it."""
    return str(count) if count else "refused" if refused else NEVER
