"""`check`: the notebook's batch, then generated cases, then whatever failed, shrunk."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis.strategies import SearchStrategy
from rich.console import Console

from harness.case import Case, Dtype, LossContract, Row
from harness.compare import Comparison, Verdict
from harness.plan import plan
from harness.ranks.pool import RankPool
from harness.report.bundle import write_bundle
from harness.report.table import Live, Summary, Tally, show
from harness.report.text import explain
from harness.run import evaluate, evaluate_all, verdict_only
from harness.search import generate, same_kind, shrink, worth_shrinking
from harness.situations import SITUATIONS, situations_of
from harness.strategies import cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to check, and how much."""

    candidates: tuple[str, ...]
    sps: tuple[int, ...]
    dps: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    losses: tuple[LossContract, ...]
    count: int
    seed: int


def check(request: Request, pool: RankPool, console: Console) -> Summary:
    """Judge every candidate; each stops at its first failure, which is then shrunk and kept."""
    started = time.monotonic()
    pool.start()
    strategy = cases(
        sps=request.sps,
        dps=request.dps,
        dtypes=request.dtypes,
        losses=request.losses,
        max_ranks=pool.size,
    )
    first = notebook_case(request, pool.size)
    console.print(notebook_text(first), markup=False, highlight=False)
    batch = [first, *generate(strategy, request.count - 1, request.seed)]
    summary = Summary({name: Tally(name) for name in request.candidates})
    with Live(console, len(batch), len(SITUATIONS)) as live:
        for comparison in evaluate_all(_jobs(batch, summary, live), pool):
            tally = summary.tallies[comparison.candidate]
            if tally.failure is None:
                tally.add(comparison)
                if comparison.verdict in (Verdict.FAULT, Verdict.DIVERGED):
                    tally.failure = comparison
        summary.cases = max(tally.cases for tally in summary.tallies.values())
        for tally in summary.tallies.values():
            if tally.failure is not None and worth_shrinking(tally.failure):
                live.update(summary.cases, len(summary.situations), f"shrinking {tally.candidate}")
                tally.failure = _smallest(tally.failure, batch, strategy, request, pool)
    summary.seconds = time.monotonic() - started
    show(summary, list(SITUATIONS), console)
    for tally in summary.tallies.values():
        if tally.failure is not None:
            place = write_bundle(tally.failure)
            console.print(
                f"\n{explain(tally.failure)}\n  bundle  {place}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    return summary


def _jobs(batch: list[Case], summary: Summary, live: Live) -> Iterator[tuple[Case, str]]:
    for case in batch:
        going = [t.candidate for t in summary.tallies.values() if t.failure is None]
        if not going:
            return
        yield from ((case, candidate) for candidate in going)
        summary.cases += 1
        summary.situations.update(situations_of(case))
        live.update(summary.cases, len(summary.situations))


def _smallest(
    failure: Comparison,
    batch: list[Case],
    strategy: SearchStrategy[Case],
    request: Request,
    pool: RankPool,
) -> Comparison:
    # The candidate stopped here, so every case before this one passed.
    small = shrink(
        strategy,
        max(request.count - 1, 1),
        request.seed,
        failure,
        lambda case: verdict_only(case, failure.candidate, pool),
        passed=frozenset(batch[: batch.index(failure.case)]),
    )
    if small.case == failure.case:
        return failure
    # Once more with full tracing, to say where it parts first.
    again = evaluate(small.case, failure.candidate, pool)
    return again if same_kind(again, failure) else small


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
