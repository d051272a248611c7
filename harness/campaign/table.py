"""What `check` and `merge` show when they are done. Needs no torch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.against import AGAINST_ITSELF, IS_KEPT, ITSELF
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, LIMIT, PLACE, Summary
from harness.campaign.tally import BUCKETS, OUTCOMES, PASSING, Tally, worst
from harness.names import short_names
from harness.uncompared import told_of

ENDED = {
    INTERRUPTED: "interrupted before all cases were judged; this is no pass",
    LIMIT: "--limit ended the run",
}
# How often a situation was met in which no case was; those that were refused may have been in it.
NEVER = "never"
LEAVE_OUT = "Leave it out with --sp, --dtype, --loss and --set"
# Between two columns of situations.
GAP = 4
MOST_REASONS = 10
MOST_LEANS = 3
# Up to this share of cases that are not judgeable in their dtype, the end does not speak of them.
MOST_HIDDEN = 0.1
# A share of what a dtype may round that some case uses, if anything is computed in it.
LEAST_USED = 1e-4
# Columns, for what has as much room as it wants.
ENDLESS = 10_000


def show(summary: Summary, console: Console) -> None:
    """The closing tables."""
    put(console, _verdicts(summary))
    put(console, _errors(summary))
    for candidate, tally in summary.tallies.items():
        say(console, "".join(_of_candidate(candidate, tally, summary.request)), end="")
    _situations(summary, console)
    _bounds(summary, console)
    if summary.placement:
        say(console, f"\n{_place(dict(summary.placement))}")
    if summary.ended:
        judged = (
            "1 case was judged" if summary.cases == 1 else f"{summary.cases} cases were judged"
        )
        console.print(Text(f"\n{ENDED[summary.ended]}; {judged}", "bold"))
    if summary.unseen:
        say(console, f"\n{summary.unseen}")
    if summary.request.against == ITSELF:
        compared = [f"{name}: {_compared(tally)}" for name, tally in summary.tallies.items()]
        kept = [IS_KEPT] * any(tally.kept for tally in summary.tallies.values())
        say(console, "\n".join(["", AGAINST_ITSELF, *kept, *compared]))
    if summary.missing:
        missing = f"{_shards(summary.missing)} of {summary.of}"
        console.print(Text(f"\nmissing  {missing}: nothing was examined there", "bold red"))


def _of_candidate(candidate: str, tally: Tally, request: Request) -> Iterator[str]:
    """What there is to be said of its cases, by reasons."""
    if tally.refused:
        drawn = f"of {tally.verdicts.total()} cases that were drawn"
        yield _by_reason(f"{candidate} does not support, {drawn}", tally.refused)
    yield from _unjudgeable(candidate, tally)
    yield from _more_than_asked(candidate, tally)
    if tally.uncompared:
        itself = request.against == ITSELF
        yield f"\n{candidate}: {told_of(tally.uncompared, itself=itself)}\n"
    if tally.known:
        yield _by_reason(f"{candidate} fails as is listed of it", tally.known)
    if tally.marks and request.keep_going > 1:
        yield _by_reason(f"{candidate}: cases that failed, by how", tally.marks)


def _bounds(summary: Summary, console: Console) -> None:
    """Once, or for each candidate where they were judged on other cases."""
    texts = {name: tally.bounds.text() for name, tally in summary.tallies.items()}
    if len({*texts.values()}) == 1:
        texts = {"": next(iter(texts.values()))}
    for name, text in texts.items():
        if text:
            console.print(Text(f"\n{name and name + ', '}{text}"))


def _compared(tally: Tally) -> str:
    """How much was, where nobody knows what a step has to emit."""
    noun = "gradient was" if tally.gradients == 1 else "gradients were"
    zero = f", {tally.zeros:,} of them zero everywhere" if tally.zeros else ""
    return f"{tally.gradients:,} {noun} compared in {tally.passed:,} cases{zero}"


def _place(place: dict[str, str]) -> str:
    _, devices, transport, ranks = (place.pop(name) for name in PLACE)
    hardware = "".join(f", {name} {what}" for name, what in place.items())
    return f"{ranks} ranks on {devices} over {transport}{hardware}"


def show_failures(summary: Summary, console: Console) -> None:
    """For each candidate the smallest failure in full, and the commands for the others."""
    for tally in summary.tallies.values():
        for failure in tally.failures[:1]:
            say(console, f"\n{failure['explanation']}")
        for failure in tally.failures[1:]:
            say(console, f"  also    {failure['verdict']}  {failure['replay']}")


def show_bundles(summary: Summary, console: Console) -> None:
    """Each failure in full, and where it is kept; once, where ranks could not even start."""
    failures = [each for tally in summary.tallies.values() for each in tally.failures]
    for failure in {each["bundle"]: each for each in reversed(failures)}.values():
        say(console, f"\n{failure['explanation']}\n  bundle  {failure['bundle']}")


def closing(summary: Summary, status: int) -> str:
    """What the exit status says, in words."""
    cut = summary.ended == LIMIT
    why = [each for name, tally in summary.tallies.items() if (each := _why(name, tally, cut=cut))]
    much = [each for name, tally in summary.tallies.items() if (each := _much_hidden(name, tally))]
    if status == 0 and why:
        why = ["every case passed, but for what is listed as known"]
    if summary.missing:
        why.append("shards are missing")
    if summary.ended == INTERRUPTED:
        why.append("interrupted")
    passed = "every case that was judged passed" if summary.ended else "every case passed"
    return f"exit status {status}: {'; '.join([*(why or [passed]), *much])}"


def _why(candidate: str, tally: Tally, *, cut: bool) -> str:
    """Why a candidate did not pass, or nothing."""
    if tally.verdict in PASSING:
        return ""
    if not tally.verdicts:
        return f"{candidate} was given no case"
    if tally.failures:
        kinds = {failure["verdict"] for failure in tally.failures}
        return f"{candidate} is {worst(kinds)} on {tally.failures[0]['case']}"
    if tally.lacking or not tally.judged:
        return _too_few(candidate, tally)
    return f"{candidate} {_over_all_cases(tally, cut=cut)}"


def _over_all_cases(tally: Tally, *, cut: bool) -> str:
    """What shows in no single case."""
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
            + ("Raise --limit" if cut else f"{LEAVE_OUT}, or ask for more --cases")
        )
    forgiven = "which passes with --known pass" if tally.passed else "and passes nothing"
    return f"fails as is listed of it, {forgiven}"


def _too_few(candidate: str, tally: Tally) -> str:
    """Why it could not be judged on as many cases as were asked for."""
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


def _unjudgeable(candidate: str, tally: Tally) -> Iterator[str]:
    """In each dtype how many cases, and the tensor that is most often to blame."""
    for dtype, hidden in tally.unjudgeable.items():
        (key, _), drawn = hidden.most_common(1)[0], tally.judged + tally.hidden
        yield (
            f"\n{candidate}: {hidden.total()} of {drawn} cases were not judgeable in {dtype}, "
            f"most often because rounding hides {key}\n"
        )


def _more_than_asked(candidate: str, tally: Tally) -> Iterator[str]:
    """Where it rounds so little that it cannot compute in the dtype of its cases."""
    for dtype, histogram in tally.used.items():
        if dtype != "fp64" and 0 < histogram.most < LEAST_USED:
            yield (
                f"\n{candidate}: no case used even a share of {LEAST_USED:g} of what {dtype} may "
                f"round; if it computes in more than {dtype}, this says nothing of {dtype}\n"
            )


def _much_hidden(candidate: str, tally: Tally) -> str:
    """What is said at the end where a campaign looked away too often, or nothing."""
    if tally.hidden <= MOST_HIDDEN * (tally.judged + tally.hidden):
        return ""
    dtypes = ", ".join(tally.unjudgeable)
    return (
        f"more than a tenth of the cases of {candidate} were not judgeable in {dtypes}: ask for a "
        "dtype that rounds less"
    )


def put(console: Console, table: Table) -> None:
    """A table where there is room for all of it; else a line for each row, because none is cut."""
    endless = console.options.update(width=ENDLESS)
    if console.measure(table, options=endless).maximum <= console.width:
        console.print(table)
        return
    heads = [str(column.header) for column in table.columns]
    say(console, f"\n{table.title}")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = map(str, row)
        told = (f"{head} {cell}" for head, cell in zip(heads[1:], others, strict=True))
        say(console, f"  {first}: {', '.join(each for each in told if not each.endswith('·'))}")


def say(console: Console, text: str, end: str = "\n") -> None:
    """Text to be copied: neither wrapped nor coloured, whatever signs are in it."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True, end=end)


def titled(title: str) -> Table:
    """A table with rules under its heads only."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )


def _shards(numbers: Sequence[int]) -> str:
    """1, 2, 3 and 7 as `shards 1-3, 7`."""
    runs = groupby(enumerate(numbers), lambda each: each[1] - each[0])
    spans = [[number for _, number in run] for _, run in runs]
    listed = ", ".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)
    return f"shard{'s' if len(numbers) > 1 else ''} {listed}"


def _verdicts(summary: Summary) -> Table:
    noun = "case" if summary.cases == 1 else "cases"
    title = f"{summary.cases} {noun} in {summary.seconds:.1f} s"
    if summary.of > 1:
        title += f", {_shards(summary.shards)} of {summary.of}"
    table = titled(title)
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


def _by_reason(title: str, counts: Counter[str]) -> str:
    reasons = counts.most_common(MOST_REASONS)
    others = counts.total() - sum(count for _, count in reasons)
    rows = [*reasons, ("for other reasons", others)] if others else reasons
    return f"\n{title}\n" + "".join(f"{count:5}  {reason}\n" for reason, count in rows)


def _errors(summary: Summary) -> Table:
    table = titled("cases that passed, by their largest error as a share of what was allowed")
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


def _situations(summary: Summary, console: Console) -> None:
    """Where every candidate was given up, what was not met says nothing."""
    if not all(tally.failed for tally in summary.tallies.values()):
        console.print(_met(summary, console.width))


def _met(summary: Summary, width: int) -> Table:
    """In two columns where the console is wide enough."""
    counts = summary.situations
    met = sum(1 for count in counts.values() if count)
    told = {name: _count(count, summary.refused[name]) for name, count in counts.items()}
    number = max(map(len, (*told.values(), NEVER)))
    name = max(map(len, counts), default=0)
    sides = 2 if 2 * (number + 1 + name) + GAP <= width else 1
    table = Table(
        title=f"situations met: {met} of {len(counts)}",
        title_justify="left",
        show_header=False,
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for side in range(sides):
        table.add_column(justify="right", no_wrap=True, min_width=number + (GAP - 1) * side)
        table.add_column(no_wrap=sides == 2)
    cells = [
        (Text(told[name], "" if count else "bold yellow"), Text(name))
        for name, count in counts.items()
    ]
    height = -(-len(cells) // sides)
    columns = [cells[side * height : (side + 1) * height] for side in range(sides)]
    for row in zip_longest(*columns, fillvalue=(Text(), Text())):
        table.add_row(*(cell for pair in row for cell in pair))
    return table


def _count(count: int, refused: int) -> str:
    """A situation that was not met is a warning: the run did not test it."""
    return str(count) if count else "refused" if refused else NEVER
