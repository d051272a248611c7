"""`check`: the notebook's batch, then generated cases, then whatever failed, shrunk."""

from collections.abc import Callable, Sequence

from rich.console import Console

from harness.campaign.case_source import Supply, notebooks_batch
from harness.campaign.conduct import Campaign, Share
from harness.campaign.examine import Examiner
from harness.campaign.journal import Journal
from harness.campaign.live import Live
from harness.campaign.pending import Asked
from harness.campaign.request import Request
from harness.campaign.summary import Summary
from harness.campaign.table import say, show, show_bundles
from harness.case import Case
from harness.engine.engine import Engine, ThisProcess
from harness.engine.lot import Lot
from harness.generation.situations import SITUATIONS
from harness.plan import plan

# Names of candidates whose rows are padded and cut as the first case is shown.
OURS = ("native-", "mutants.", "benign.")


def check(examiner: Examiner, console: Console, journal: Journal | None = None) -> Summary:
    """Judge every candidate on one pool of ranks.

    A Ctrl-C ends it, and what was judged until then is told all the same.
    """
    request, part, pool = examiner.request, examiner.part, examiner.session.pool
    pool.start()
    lots = part.lots(request.count)
    # What is wrong with the request is said before anything is shown.
    Supply(request, pool.size, lots[0])

    def here(live: Live) -> Engine[Share, Summary]:
        return ThisProcess(lambda share: examiner.examine(*share, live))

    return conduct(request, pool.size, lots, console, here, journal)


def conduct(
    request: Request,
    ranks: int,
    lots: Sequence[Lot],
    console: Console,
    open_engine: Callable[[Live], Engine[Share, Summary]],
    journal: Journal | None = None,
) -> Summary:
    """Have lots judged, wherever that is, and show what they come to."""
    journal = journal or Journal()
    if lots[0].begins and any(name.startswith(OURS) for name in request.candidates):
        for case in notebooks_batch(request, ranks):
            say(console, notebook_text(case))
    with Live(console, sum(map(len, lots)), len(SITUATIONS)) as live:

        def counted(lot: Lot, asked: Asked, found: Summary) -> None:
            live.count(found)
            journal.keep(lot, asked, found)

        campaign = Campaign(request, lots, counted)
        summary = campaign.run(open_engine(live), journal.known)
    summary.seconds = journal.elapsed
    show(summary, console)
    show_bundles(summary, console)
    return summary


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
