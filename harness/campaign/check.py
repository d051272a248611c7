"""`check`: judge the notebook's batch, then generated cases, and show what failed, shrunk."""

from collections.abc import Callable, Sequence

from rich.console import Console

from harness.campaign.case_source import CaseSource, notebooks_batch
from harness.campaign.conduct import Campaign, LotJob
from harness.campaign.examine import Examiner
from harness.campaign.journal import Journal
from harness.campaign.live import Live
from harness.campaign.pending import PendingCandidates
from harness.campaign.request import Request
from harness.campaign.summary import Summary
from harness.campaign.table import show, show_bundles
from harness.case import Case
from harness.console import print_plain
from harness.engine.engine import Engine, ThisProcess
from harness.engine.lot import Lot
from harness.generation.situations import SITUATIONS
from harness.plan import plan

# These candidates pad and cut rows as `notebook_text` shows it; others may not.
OWN_CANDIDATES = ("native-", "mutants.", "benign.")


def check(examiner: Examiner, console: Console, journal: Journal | None = None) -> Summary:
    """Judge every candidate on one pool of ranks, in this process.

    A Ctrl-C ends the campaign; the cases that were judged until then are shown and returned.
    """
    request, part, pool = examiner.request, examiner.part, examiner.session.pool
    pool.start()
    lots = part.lots(request.count)
    # Draw the first lot now: a request that cannot be drawn is refused before anything is shown.
    CaseSource.for_candidates(request, pool, lots[0])

    def open_engine(live: Live) -> Engine[LotJob, Summary]:
        return ThisProcess(lambda share: examiner.examine(*share, live))

    return conduct(request, pool.size, lots, console, open_engine, journal)


def conduct(
    request: Request,
    ranks: int,
    lots: Sequence[Lot],
    console: Console,
    open_engine: Callable[[Live], Engine[LotJob, Summary]],
    journal: Journal | None = None,
) -> Summary:
    """Have an engine judge the lots, show their progress and results, and return the summary."""
    journal = journal or Journal()
    if request.up_to:
        print_plain(console, f"all {request.count:,} cases of up to {request.up_to} tokens")
    elif lots[0].begins and any(name.startswith(OWN_CANDIDATES) for name in request.candidates):
        for case in notebooks_batch(request, ranks):
            print_plain(console, notebook_text(case))
    with Live(console, sum(map(len, lots)), len(SITUATIONS)) as live:

        def on_counted(lot: Lot, pending: PendingCandidates, summary: Summary) -> None:
            live.count(summary)
            journal.write(lot, pending, summary)

        campaign = Campaign(request, lots, on_counted)
        summary = campaign.run(open_engine(live), journal.known)
    summary.seconds = journal.elapsed
    show(summary, console)
    show_bundles(summary, console)
    return summary


def notebook_text(case: Case) -> str:
    """Show the notebook's batch, how it is cut, and its labels, in the notebook's own terms."""
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
