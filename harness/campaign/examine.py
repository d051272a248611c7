"""One lot of cases: judged, and each candidate's first failure shrunk, named and kept."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from harness.campaign.digest import Begun
from harness.campaign.lot import WHOLE, Lot, Part
from harness.campaign.request import Request, origin
from harness.campaign.summary import INTERRUPTED, LIMIT, Summary, versions
from harness.campaign.supply import Supply
from harness.campaign.tally import Tally
from harness.campaign.undisturbed import undisturbed
from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.failure.bundle.keep import keep
from harness.failure.shrink import SHRINK_SECONDS, worth_shrinking
from harness.failure.smallest import smallest
from harness.generation.situations import SITUATIONS, situations_of
from harness.judge import diagnosed, evaluate_all
from harness.judge.diagnosed import DIAGNOSE_SECONDS
from harness.judge.known import recognised
from harness.ranks.pool import RankPool
from harness.report.record import comparison_record

# What ran on ranks before may have left something there; so much of it is kept in mind.
MOST_EARLIER = 1000


class Watch(Protocol):
    """Who is told how far it is."""

    def tell(self, summary: Summary, doing: str = "checking") -> None: ...

    def found(self, failure: Comparison) -> None: ...


def nothing(request: Request, ranks: int, part: Part, size: int) -> Summary:
    """What a campaign comes to of which nobody has judged any case yet."""
    return Summary(
        request=request,
        ranks=ranks,
        versions=versions(),
        size=size,
        of=part.of,
        shards=(part.number,),
        tallies={candidate: Tally() for candidate in request.candidates},
        situations=Counter(dict.fromkeys(SITUATIONS, 0)),
    )


@dataclass(slots=True, kw_only=True)
class Examiner:
    """Ranks on which one lot after the other is judged."""

    request: Request
    pool: RankPool
    # No case is begun after this moment.
    until: float = math.inf
    diagnoses: bool = True
    part: Part = WHOLE
    # What these ranks ran before.
    earlier: list[Case] = field(default_factory=list)

    def examine(self, lot: Lot, names: Sequence[str], watch: Watch) -> Summary:
        """Judge these candidates; each stops at its first failure.

        A Ctrl-C ends it, and what was judged until then is told all the same.
        """
        started = time.monotonic()
        self.pool.start()
        supply = Supply(self.request, self.pool.size, lot)
        summary = self._nothing_yet(supply, names)
        try:
            self._judge(supply, summary, names, watch)
            for name in names:
                self._explain(summary, name, supply, watch)
        except KeyboardInterrupt:
            summary.ended = INTERRUPTED
        self.earlier = [*self.earlier, *supply.given][-MOST_EARLIER:]
        summary.seconds = round(time.monotonic() - started, 3)
        summary.placement = self.pool.place
        self._keep(summary)
        return summary

    def _nothing_yet(self, supply: Supply, names: Sequence[str]) -> Summary:
        summary = nothing(self.request, self.pool.size, self.part, len(supply.share))
        summary.unseen = self.pool.placement.unseen
        summary.begun[supply.number] = Begun(supply.drawn)
        asked = supply.asked()
        for name in names:
            summary.tallies[name].coverage += asked
        return summary

    def _judge(self, supply: Supply, summary: Summary, names: Sequence[str], watch: Watch) -> None:
        case: Case | None = None
        counted, situations, last = set[bool](), list[str](), time.monotonic()
        share, against = set(supply.share), self.request.against
        begun = summary.begun[supply.number]
        rounds = self._jobs(supply, summary, names)
        seen = (evaluate_all(jobs, self.pool, against=against) for jobs in rounds)
        for comparison in map(recognised, chain.from_iterable(seen)):
            tally = summary.tallies[comparison.candidate]
            if tally.failure is not None:
                continue
            with undisturbed():
                now = time.monotonic()
                seconds, last = now - last, now
                # Once for all candidates.
                if comparison.case is not case:
                    case, counted = comparison.case, set()
                    situations = situations_of(case)
                    if case in share:
                        begun.begin(case)
                tally.add(comparison, situations, seconds)
                if comparison.verdict.failed:
                    tally.failure = comparison
                    watch.found(comparison)
                refused = comparison.verdict is Verdict.UNSUPPORTED
                if refused not in counted:
                    counted.add(refused)
                    (summary.refused if refused else summary.situations).update(situations)
                    summary.cases += not refused
            watch.tell(summary)

    def _jobs(
        self, supply: Supply, summary: Summary, names: Sequence[str]
    ) -> Iterator[Iterator[tuple[Case, str]]]:
        """One round after the other: how many there are shows in what became of those before."""
        for jobs in supply.rounds({name: summary.tallies[name] for name in names}):
            yield self._while_it_is_time(jobs, supply, summary)
            if summary.ended:
                return

    def _while_it_is_time(
        self, jobs: list[tuple[Case, str]], supply: Supply, summary: Summary
    ) -> Iterator[tuple[Case, str]]:
        for case, candidate in jobs:
            # The first case is always tried: a run of nothing would tell nothing.
            tried = self.earlier or summary.cases or case is not jobs[0][0]
            if tried and time.monotonic() > self.until:
                summary.ended = LIMIT
                return
            tally = summary.tallies[candidate]
            if tally.failure is None and not supply.is_in_vain(tally):
                yield case, candidate

    def _explain(self, summary: Summary, name: str, supply: Supply, watch: Watch) -> None:
        """Shrink a failure, if there is one, and name it by experiments."""
        tally = summary.tallies[name]
        if tally.failure is None or not worth_shrinking(tally.failure):
            return
        watch.tell(summary, f"shrinking {name}")
        before = supply.given[: supply.given.index(tally.failure.case)]
        seconds = min(SHRINK_SECONDS, self.until - time.monotonic())
        earlier = [*self.earlier, *before]
        tally.failure = smallest(tally.failure, self.pool, earlier, seconds).smallest
        if self.diagnoses:
            watch.tell(summary, f"diagnosing {name}")
            seconds = min(DIAGNOSE_SECONDS, self.until - time.monotonic())
            tally.failure = diagnosed(tally.failure, self.pool, seconds)

    def _keep(self, summary: Summary) -> None:
        """Write a bundle of each failure; one, where ranks could not even start."""
        kept: dict[int, str] = {}
        for tally in summary.tallies.values():
            failure = tally.failure
            if failure is None:
                continue
            # Ranks that do not come up have one fault for everybody.
            same = id(failure.fault or failure)
            if same not in kept:
                kept[same] = keep(failure, self.pool, campaign=origin(self.request, self.part))
            tally.failures.append({**comparison_record(failure), "bundle": kept[same]})
