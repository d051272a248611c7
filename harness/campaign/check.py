"""`check`: the notebook's batch, then generated cases, then whatever failed, shrunk."""

import hashlib
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from hypothesis.strategies import SearchStrategy
from rich.console import Console

import harness
from harness.campaign.live import Live
from harness.campaign.request import WHOLE, Part, Request, origin
from harness.campaign.summary import INTERRUPTED, LIMIT, Summary, Tally
from harness.campaign.table import say, show
from harness.case import Case, InvalidCase, Row
from harness.compare import Verdict
from harness.failure.bundle.keep import keep
from harness.failure.shrink import SHRINK_SECONDS, worth_shrinking
from harness.failure.smallest import smallest
from harness.generation import cases, generate
from harness.generation.situations import SITUATIONS, situations_of
from harness.generation.stated import read_stated
from harness.judge import evaluate_all
from harness.judge.known import recognised
from harness.outside import BadInput
from harness.plan import plan
from harness.ranks.pool import RankPool
from harness.report.record import comparison_record
from harness.report.text import explain


class NothingToDraw(BadInput):
    """What is stated of fields leaves no case."""


def check(
    request: Request,
    pool: RankPool,
    console: Console,
    part: Part = WHOLE,
    limit: float = math.inf,
) -> Summary:
    """Judge every candidate; each stops at its first failure, which is then shrunk and kept.

    After `limit` seconds no case is begun any more. A Ctrl-C ends it as well, and what was judged
    until then is told all the same.
    """
    started = time.monotonic()
    until = started + limit
    pool.start()
    batch = draw(request, pool.size)
    share = part.share(batch)
    if part.number == 1:
        console.print(notebook_text(batch[0]), markup=False, highlight=False)
    summary = _nothing_yet(request, part, batch, pool.size, pool.placement.unseen)
    with Live(console, len(share), len(SITUATIONS)) as live:
        try:
            _judge(share, summary, pool, live, until)
            for tally in summary.tallies.values():
                if tally.failure is not None and worth_shrinking(tally.failure):
                    live.tell(summary.cases, _met(summary), f"shrinking {tally.failure.candidate}")
                    seconds = min(SHRINK_SECONDS, until - time.monotonic())
                    # Of the cases before this one its ranks ran those of this shard.
                    earlier = share[: share.index(tally.failure.case)]
                    tally.failure = smallest(tally.failure, pool, earlier, seconds).smallest
        except KeyboardInterrupt:
            summary.ended = INTERRUPTED
    summary.seconds = round(time.monotonic() - started, 3)
    summary.placement = pool.place
    show(summary, console)
    _keep(summary, pool, console, part)
    return summary


def _judge(share: list[Case], summary: Summary, pool: RankPool, live: Live, until: float) -> None:
    met: Case | None = None
    for comparison in map(recognised, evaluate_all(_jobs(share, summary, until), pool)):
        tally = summary.tallies[comparison.candidate]
        if tally.failure is not None:
            continue
        with _undisturbed():
            tally.add(comparison)
            if comparison.verdict.failed:
                tally.failure = comparison
                live.found(comparison)
            # Once for all candidates, and not where none of them could run the case.
            if comparison.verdict is not Verdict.UNSUPPORTED and comparison.case is not met:
                met = comparison.case
                summary.situations.update(situations_of(met))
            summary.cases = max(tally.cases for tally in summary.tallies.values())
        live.tell(summary.cases, _met(summary))


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


def draw(request: Request, ranks: int) -> list[Case]:
    """All cases of a campaign, no two of them equal; the notebook's batch is the first."""
    first = _as_stated(notebook_case(request, ranks), request)
    drawn = generate(_strategy(request, ranks), request.count - len(first), request.seed)
    if not first and not drawn:
        raise NothingToDraw(f"--set={','.join(request.stated)}: no case is like this")
    return list(dict.fromkeys([*first, *drawn]))


def _as_stated(case: Case, request: Request) -> list[Case]:
    """The same with what is stated of its fields; nothing where that cannot be."""
    try:
        return [replace(case, **{n: values[0] for n, values in map(read_stated, request.stated)})]
    except InvalidCase:
        return []


def _strategy(request: Request, ranks: int) -> SearchStrategy[Case]:
    return cases(
        sps=request.sps,
        dps=request.dps,
        dtypes=request.dtypes,
        losses=request.losses,
        kernels=request.kernels,
        wrappers=request.wrappers,
        stated=request.stated,
        max_ranks=ranks,
    )


def _nothing_yet(
    request: Request, part: Part, batch: list[Case], ranks: int, unseen: str
) -> Summary:
    return Summary(
        request=request,
        ranks=ranks,
        versions={
            "harness": harness.__version__,
            **{package: version(package) for package in ("hypothesis", "torch")},
        },
        unseen=unseen,
        size=len(batch),
        drawn=hashlib.sha256("\n".join(map(str, batch)).encode()).hexdigest()[:16],
        of=part.of,
        shards=(part.number,),
        tallies={candidate: Tally() for candidate in request.candidates},
        situations=Counter(dict.fromkeys(SITUATIONS, 0)),
    )


def _jobs(share: list[Case], summary: Summary, until: float) -> Iterator[tuple[Case, str]]:
    for number, case in enumerate(share):
        going = [name for name, tally in summary.tallies.items() if tally.failure is None]
        if not going:
            return
        # The first case is always judged: a run of nothing would tell nothing.
        if number and time.monotonic() > until:
            summary.ended = LIMIT
            return
        yield from ((case, candidate) for candidate in going)


def _met(summary: Summary) -> int:
    return sum(1 for count in summary.situations.values() if count)


def notebook_case(request: Request, ranks: int) -> Case:
    """The batch that this project started from, on four ranks where there are four."""
    sp = max((sp for sp in request.sps if sp <= min(ranks, 4)), default=min(request.sps))
    heads = 4 if 4 % sp == 0 else sp
    return Case(
        rows=(Row("1111"), Row("111")),
        ids=((1, 2, 3, 4), (5, 6, 7)),
        heads=heads,
        kv_heads=heads,
        vocab=10,
        sp=sp,
        loss=request.losses[0],
        dtype=request.dtypes[0],
    )


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
