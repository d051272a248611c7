"""`check`: judge candidates on generated cases."""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from harness.campaign.request import Request
from harness.campaign.uninterrupted import hold_back_signals
from harness.commands.campaign_request import SMALL_SPS, USUAL_SPS, every_small, read_request
from harness.commands.engines import open_cluster, pools_for
from harness.commands.examiner import open_elsewhere, open_examiner, open_work, read_work
from harness.commands.options import (
    STOPPED,
    Campaign,
    Judging,
    Pools,
    Report,
    Step,
    answer,
    require_writable_report,
    status_of,
)
from harness.commands.values import (
    Candidates,
    Failures,
    Folder,
    MostTokens,
    Seconds,
    Shard,
    UsageError,
)
from harness.engine.lot import WHOLE, Part
from harness.engine.no_ranks import NoRanks
from harness.engine.processes import Processes

if TYPE_CHECKING:
    from rich.console import Console

    from harness.campaign.conduct import LotJob
    from harness.campaign.summary import Summary
    from harness.engine.ray_cluster import RayCluster

# Cases that a pool must have with `--pools auto`: its start has to pay off.
CASES_PER_POOL = 25


@dataclass(frozen=True, kw_only=True)
class Check(Report, Judging, Step, Pools, Campaign):
    """The options of `check`."""

    candidate: Candidates = ()
    """a built-in name, path/to/file.py:NAME or package.module:NAME; you may repeat it; default:
    native-gather and native-local"""
    all_up_to: MostTokens | None = None
    """judge all cases of up to so many tokens instead of drawn ones: every batch with every mask,
    on every mesh, once each, the smallest first"""
    shard: Shard = WHOLE
    """judge only part K of N; `merge` adds the parts up"""
    limit: Seconds | None = None
    """start no further case after so many seconds; default: no limit"""
    keep_going: Failures = 1
    """after a failure judge a candidate on, until N are found that begin with different tensors
    or have different names"""
    resume: Folder | None = None
    """keep what is judged in this folder, and go on from what is known there; a campaign that was
    killed or moved ends as if it had run through"""


Steps = Annotated[
    tuple[str, ...],
    Parameter(
        name="CANDIDATE",
        help="path/to/file.py:NAME, or whatever --candidate takes; you may name several",
    ),
]


def run(steps: Steps = (), /, *, options: Check = Check()) -> int:
    sps = SMALL_SPS if options.all_up_to else USUAL_SPS
    request, ranks = read_request(options, (*steps, *options.candidate), options, sps)
    asked = f"--cases={request.count}"
    if options.all_up_to:
        request = every_small(request, options, ranks, options.all_up_to)
        asked = f"the {request.count} cases of --all-up-to={options.all_up_to}"
    part = options.shard
    if part.of > request.count:
        raise UsageError(f"--shard={part}: {asked} are too few for {part.of} shards")
    pools = pools_for(
        options,
        ranks,
        most=request.count,
        worth=request.count // CASES_PER_POOL,
        of=asked,
    )
    request = replace(request, keep_going=options.keep_going)
    require_writable_report(options)

    from rich.console import Console

    from harness.campaign.closing import closing
    from harness.campaign.summary import INTERRUPTED
    from harness.console import print_plain

    console = Console(stderr=options.json)
    try:
        summary = _judge(options, request, ranks, part, pools, console)
    except KeyboardInterrupt:
        # No case was judged before the interrupt.
        from harness.campaign.examine import empty_summary

        summary = empty_summary(request, ranks, part, sum(map(len, part.lots(request.count))))
        summary.ended = INTERRUPTED
    # --known pass excuses known bugs only if each candidate also passed a case.
    known = options.known if all(tally.passed for tally in summary.tallies.values()) else "fail"
    status = STOPPED if summary.ended == INTERRUPTED else status_of(summary.verdict, known)
    print_plain(console, f"\n{closing(summary, status)}")
    return answer(options, summary.record(), status)


def _judge(
    options: Check,
    request: Request,
    ranks: int,
    part: Part,
    pools: int,
    console: "Console",
) -> "Summary":
    """Judge a part of a campaign, on this process's pool or on an engine; return its summary."""
    # An import that an interrupt aborts would leave a module half initialized.
    with hold_back_signals():
        from harness.campaign.check import check, conduct
        from harness.campaign.journal import Journal
        from harness.console import print_plain
        from harness.engine.engine import Lost

    until = time.monotonic() + (options.limit or math.inf)
    journal = Journal()
    if options.resume:
        journal = Journal.of(options.resume, request, ranks, part)
        print_plain(console, journal.line())
    summary: Summary | None = None
    try:
        with journal:
            if options.on == "here" and pools == 1:
                with open_examiner(options, request, ranks, part, until) as examiner:
                    summary = check(examiner, console, journal)
            else:
                with _open_engine(options, request, ranks, part, pools, until) as engine:
                    # A journal keeps whole lots, so that it fits any number of pools.
                    lots = part.lots(request.count, 1 if options.resume else engine.count)
                    summary = conduct(request, ranks, lots, console, lambda _: engine, journal)
    except Lost as error:
        raise NoRanks(f"harness: {error}", str(error)) from None
    except KeyboardInterrupt:
        # A second interrupt came while the ranks were ending: the summary is complete.
        if summary is None:
            raise
    return summary


def _open_engine(
    options: Check,
    request: Request,
    ranks: int,
    part: Part,
    pools: int,
    until: float,
) -> "Processes[LotJob, Summary] | RayCluster[LotJob, Summary]":
    """Return an engine of several pools, on this host or on a Ray cluster."""
    asked = options, request, ranks, part
    if options.on == "here":
        return Processes(open_work, (*asked, until), pools, read_work)

    def with_seconds_left() -> tuple[Any, ...]:
        return (*asked, until - time.monotonic())

    return open_cluster(open_elsewhere, with_seconds_left, options, ranks, read_work)
