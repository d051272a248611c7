"""`check`: the notebook's batch, then generated cases, then whatever failed, shrunk."""

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import chain
from typing import Any

from rich.console import Console

import harness
from harness.campaign.digest import digest
from harness.campaign.live import Live
from harness.campaign.request import WHOLE, Part, Request, origin
from harness.campaign.summary import INTERRUPTED, LIMIT, Summary
from harness.campaign.supply import Supply
from harness.campaign.table import say, show
from harness.campaign.tally import Tally
from harness.case import Case
from harness.compare import Verdict
from harness.failure.bundle.keep import keep
from harness.failure.shrink import SHRINK_SECONDS, worth_shrinking
from harness.failure.smallest import smallest
from harness.generation.situations import SITUATIONS, situations_of
from harness.judge import diagnosed, evaluate_all
from harness.judge.diagnosed import DIAGNOSE_SECONDS
from harness.judge.known import recognised
from harness.plan import plan
from harness.ranks.pool import RankPool
from harness.report.record import comparison_record
from harness.report.text import explain

# Those whose rows are padded and cut as the first case is shown.
OURS = ("native-", "mutants.", "benign.")


def check(
    request: Request,
    pool: RankPool,
    console: Console,
    part: Part = WHOLE,
    limit: float = math.inf,
    *,
    tables: bool = True,
    diagnoses: bool = True,
) -> Summary:
    """Judge every candidate; each stops at its first failure, which is then shrunk and kept.

    After `limit` seconds no case is begun any more. A Ctrl-C ends it as well, and what was judged
    until then is told all the same. `tables` are left to who adds several parts up.
    """
    started = time.monotonic()
    until = started + limit
    pool.start()
    supply = Supply(request, pool.size, part)
    if part.number == 1 and any(name.startswith(OURS) for name in request.candidates):
        console.print(notebook_text(supply.batch[0]), markup=False, highlight=False)
    summary = _nothing_yet(request, part, supply, pool)
    with Live(console, len(supply.share), len(SITUATIONS)) as live:
        try:
            _judge(supply, summary, pool, live, until)
            for tally in summary.tallies.values():
                if tally.failure is not None and worth_shrinking(tally.failure):
                    live.tell(
                        _judged(summary), _met(summary), f"shrinking {tally.failure.candidate}"
                    )
                    seconds = min(SHRINK_SECONDS, until - time.monotonic())
                    # Of the cases before this one its ranks ran those of this shard.
                    earlier = supply.given[: supply.given.index(tally.failure.case)]
                    tally.failure = smallest(tally.failure, pool, earlier, seconds).smallest
                    if diagnoses:
                        live.tell(
                            _judged(summary),
                            _met(summary),
                            f"diagnosing {tally.failure.candidate}",
                        )
                        seconds = min(DIAGNOSE_SECONDS, until - time.monotonic())
                        tally.failure = diagnosed(tally.failure, pool, seconds)
        except KeyboardInterrupt:
            summary.ended = INTERRUPTED
    summary.seconds = round(time.monotonic() - started, 3)
    summary.placement = pool.place
    if tables:
        show(summary, console)
    _keep(summary, pool, console, part)
    return summary


def _judge(supply: Supply, summary: Summary, pool: RankPool, live: Live, until: float) -> None:
    case: Case | None = None
    counted, situations, last = set[bool](), list[str](), time.monotonic()
    share, against = set(supply.share), summary.request.against
    rounds = _jobs(supply, summary, until)
    seen = (evaluate_all(jobs, pool, against=against) for jobs in rounds)
    for comparison in map(recognised, chain.from_iterable(seen)):
        tally = summary.tallies[comparison.candidate]
        if tally.failure is not None:
            continue
        with _undisturbed():
            now = time.monotonic()
            seconds, last = now - last, now
            # Once for all candidates.
            if comparison.case is not case:
                case, counted = comparison.case, set()
                situations = situations_of(case)
                if case in share:
                    summary.begin(case)
            tally.add(comparison, situations, seconds)
            if comparison.verdict.failed:
                tally.failure = comparison
                live.found(comparison)
            refused = comparison.verdict is Verdict.UNSUPPORTED
            if refused not in counted:
                counted.add(refused)
                (summary.refused if refused else summary.situations).update(situations)
                summary.cases += not refused
        live.tell(_judged(summary), _met(summary))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """What is counted of a case is counted whole: a Ctrl-C that comes meanwhile comes after it."""
    came: list[int] = []
    before: dict[int, Callable[..., Any]] = {}
    try:
        # Elsewhere nobody may, and no signal is handled there.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    before[number] = handler
                    signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for kept, handler in before.items():
            signal.signal(kept, handler)
        if came:
            signal.raise_signal(came[0])


def _keep(summary: Summary, pool: RankPool, console: Console, part: Part) -> None:
    """Write a bundle of each failure, and tell it; once, where ranks could not even start."""
    told: dict[int, str] = {}
    for tally in summary.tallies.values():
        failure = tally.failure
        if failure is None:
            continue
        # Ranks that do not come up have one fault for everybody.
        same = id(failure.fault or failure)
        if same not in told:
            told[same] = keep(failure, pool, campaign=origin(summary.request, part))
            say(console, f"\n{explain(failure)}\n  bundle  {told[same]}")
        tally.failures.append({**comparison_record(failure), "bundle": told[same]})


def _nothing_yet(request: Request, part: Part, supply: Supply, pool: RankPool) -> Summary:
    return Summary(
        request=request,
        ranks=pool.size,
        versions={
            "harness": harness.__version__,
            **{package: version(package) for package in ("hypothesis", "torch")},
        },
        unseen=pool.placement.unseen,
        size=len(supply.batch),
        drawn=digest(supply.batch),
        of=part.of,
        shards=(part.number,),
        tallies={candidate: Tally(coverage=supply.asked()) for candidate in request.candidates},
        situations=Counter(dict.fromkeys(SITUATIONS, 0)),
    )


def _jobs(supply: Supply, summary: Summary, until: float) -> Iterator[Iterator[tuple[Case, str]]]:
    """One round after the other: how many there are shows in what became of those before."""
    for jobs in supply.rounds(summary.tallies):
        yield _while_it_is_time(jobs, supply, summary, until)
        if summary.ended:
            return


def _while_it_is_time(
    jobs: list[tuple[Case, str]], supply: Supply, summary: Summary, until: float
) -> Iterator[tuple[Case, str]]:
    for case, candidate in jobs:
        # The first case is always tried: a run of nothing would tell nothing.
        if (case is not jobs[0][0] or summary.cases) and time.monotonic() > until:
            summary.ended = LIMIT
            return
        tally = summary.tallies[candidate]
        if tally.failure is None and not supply.is_in_vain(tally):
            yield case, candidate


def _judged(summary: Summary) -> int:
    return max(tally.judged for tally in summary.tallies.values())


def _met(summary: Summary) -> int:
    return sum(1 for count in summary.situations.values() if count)


def notebook_text(case: Case) -> str:
    """The batch, how it is cut, and its labels, in the notebook's own terms."""
    stream = plan(case).streams[0]
    ids = [token for row in range(len(case.rows)) for token in case.ids_of(row)]
    padded = [*map(str, ids), *["<pad>"] * stream.pad]
    size = stream.local_length
    shards = [padded[rank * size : (rank + 1) * size] for rank in range(case.sp)]
    return "\n".join(
        [
            f"first case: rows [1, 2, 3, 4] and [5, 6, 7], sp {case.sp}, pad {stream.pad}",
            *(f"  rank {r}  [{', '.join(shard)}]" for r, shard in enumerate(shards)),
            f"  labels  {[*ids[1:], ids[0]]}, rolled before the stream is cut",
        ]
    )
