"""One lot of cases: judged, and each candidate's failures shrunk, named and kept."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from harness.campaign.case_source import Supply
from harness.campaign.digest import Begun
from harness.campaign.pending import Asked
from harness.campaign.request import Request, origin
from harness.campaign.summary import INTERRUPTED, LIMIT, Summary, versions
from harness.campaign.tally import Tally
from harness.campaign.uninterrupted import undisturbed
from harness.candidates import locate
from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.engine.lot import WHOLE, Lot, Part
from harness.failure.bundle.keep import keep
from harness.failure.shrink import SHRINK_SECONDS, worth_shrinking
from harness.failure.signature import mark_of
from harness.failure.smallest import smallest
from harness.generation.situations import SITUATIONS, situations_of
from harness.judge import Job, Session, diagnosed
from harness.judge.diagnosed import DIAGNOSE_SECONDS
from harness.judge.known import recognised
from harness.report.record import comparison_record

# What ran on ranks before may have left something there; so much of it is kept in mind.
MOST_EARLIER = 1000


class Watch(Protocol):
    """Shows how far it is."""

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
    session: Session
    # No case is begun after this moment.
    until: float = math.inf
    diagnoses: bool = True
    part: Part = WHOLE
    # What these ranks ran before.
    earlier: list[Case] = field(default_factory=list)

    def examine(self, lot: Lot, asked: Asked, watch: Watch) -> Summary:
        """Judge these candidates, each until as many failures are found as are wanted.

        A Ctrl-C ends it, and what was judged until then is told all the same.
        """
        started = time.monotonic()
        self.session.pool.start()
        supply = Supply(self.request, self.session.pool.size, lot)
        summary = self._nothing_yet(supply, asked)
        try:
            self._judge(supply, summary, asked, watch)
            for ask in asked:
                self._explain(summary, ask.candidate, supply, watch)
        except KeyboardInterrupt:
            summary.ended = INTERRUPTED
        self.earlier = [*self.earlier, *supply.given][-MOST_EARLIER:]
        summary.seconds = round(time.monotonic() - started, 3)
        summary.placement = self.session.pool.place
        self._keep(summary)
        return summary

    def _nothing_yet(self, supply: Supply, asked: Asked) -> Summary:
        pool = self.session.pool
        summary = nothing(self.request, pool.size, self.part, len(supply.share))
        summary.unseen = pool.placement.unseen
        summary.begun[supply.number] = Begun(supply.drawn)
        coverage = supply.asked()
        for ask in asked:
            tally = summary.tallies[ask.candidate]
            tally.coverage += coverage
            tally.wanted = ask.wanted
        return summary

    def _judge(self, supply: Supply, summary: Summary, asked: Asked, watch: Watch) -> None:
        case: Case | None = None
        counted, situations, last = set[bool](), list[str](), time.monotonic()
        share = set(supply.share)
        begun = summary.begun[supply.number]
        known = {ask.candidate: ask.marks for ask in asked}
        rounds = self._jobs(supply, summary, asked)
        seen = map(self.session.judge, rounds)
        for comparison in map(recognised, chain.from_iterable(seen)):
            tally = summary.tallies[comparison.candidate]
            if tally.is_done:
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
                    mark = str(mark_of(comparison))
                    if tally.fail(comparison, mark, known[comparison.candidate]):
                        watch.found(comparison)
                refused = comparison.verdict is Verdict.UNSUPPORTED
                if refused not in counted:
                    counted.add(refused)
                    (summary.refused if refused else summary.situations).update(situations)
                    summary.cases += not refused
            watch.tell(summary)

    def _jobs(self, supply: Supply, summary: Summary, asked: Asked) -> Iterator[Iterator[Job]]:
        """One round after the other: how many there are shows in what became of those before."""
        named = {ask.candidate: locate(ask.candidate) for ask in asked}
        for jobs in supply.rounds({name: summary.tallies[name] for name in named}):
            in_time = self._while_it_is_time(jobs, supply, summary)
            yield (Job(case, named[name], self.request.against) for case, name in in_time)
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
            if not tally.is_done and not supply.is_in_vain(tally):
                yield case, candidate

    def _explain(self, summary: Summary, name: str, supply: Supply, watch: Watch) -> None:
        """Shrink each failure, and name it by experiments."""
        found = summary.tallies[name].found
        for mark, failure in found.items():
            if worth_shrinking(failure):
                found[mark] = self._explained(failure, summary, supply, watch)

    def _explained(
        self, failure: Comparison, summary: Summary, supply: Supply, watch: Watch
    ) -> Comparison:
        watch.tell(summary, f"shrinking {failure.candidate}")
        before = supply.given[: supply.given.index(failure.case)]
        seconds = min(SHRINK_SECONDS, self.until - time.monotonic())
        smaller = smallest(failure, self.session, [*self.earlier, *before], seconds).smallest
        if not self.diagnoses:
            return smaller
        watch.tell(summary, f"diagnosing {failure.candidate}")
        seconds = min(DIAGNOSE_SECONDS, self.until - time.monotonic())
        return diagnosed(smaller, self.session, seconds)

    def _keep(self, summary: Summary) -> None:
        """Write a bundle of each failure; one, where ranks could not even start."""
        kept, campaign = dict[int, str](), origin(self.request, self.part)
        every = [(tally, f) for tally in summary.tallies.values() for f in tally.found.values()]
        for tally, failure in every:
            # Ranks that do not come up have one fault for everybody.
            same = id(failure.fault or failure)
            if same not in kept:
                kept[same] = keep(failure, self.session.pool, campaign=campaign)
            tally.failures.append({**comparison_record(failure), "bundle": kept[same]})
