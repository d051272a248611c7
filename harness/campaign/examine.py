"""Examine one lot: judge its cases, then shrink, name and keep each candidate's failures."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from harness.campaign.case_source import CaseSource
from harness.campaign.digest import BegunCases
from harness.campaign.pending import PendingCandidates
from harness.campaign.request import Request, campaign_record
from harness.campaign.standing import Standing
from harness.campaign.summary import INTERRUPTED, LIMIT, Summary, versions
from harness.campaign.tally import Tally
from harness.campaign.uninterrupted import hold_back_signals
from harness.candidates import locate
from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.engine.lot import WHOLE, Lot, Part
from harness.failure.bundle.keep import keep_bundle
from harness.failure.shrink import SHRINK_SECONDS, can_shrink
from harness.failure.smallest import shrink_and_confirm
from harness.generation.situations import SITUATIONS, situations_of
from harness.judge import Job, Session, add_diagnosis
from harness.judge.diagnosed import DIAGNOSE_SECONDS
from harness.judge.known import mark_known
from harness.report.record import comparison_record

# A failure may need state that earlier cases left on the ranks; so many of them are remembered.
MOST_HISTORY = 1000


class ProgressView(Protocol):
    """Shows how far a lot is, and each failure when it is found."""

    def tell(self, summary: Summary, doing: str = "checking") -> None: ...

    def found(self, failure: Comparison) -> None: ...


def empty_summary(request: Request, ranks: int, part: Part, size: int) -> Summary:
    """Return the summary of a campaign of which no case is judged yet."""
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


def _standings(
    summary: Summary, source: CaseSource, pending: PendingCandidates
) -> dict[str, Standing]:
    """Return the standing of each pending candidate, which counts in the summary's tally."""
    coverage = source.requested_coverage()
    standings = {}
    for entry in pending:
        tally = summary.tallies[entry.candidate]
        tally.coverage += coverage
        standings[entry.candidate] = Standing(tally, entry.wanted, entry.marks)
    return standings


@dataclass(slots=True, kw_only=True)
class Examiner:
    """Judges one lot after the other, on the ranks of one session."""

    request: Request
    session: Session
    # No case is begun after this moment.
    until: float = math.inf
    diagnoses: bool = True
    part: Part = WHOLE
    # The cases that these ranks ran in earlier lots.
    history: list[Case] = field(default_factory=list)

    def examine(self, lot: Lot, pending: PendingCandidates, view: ProgressView) -> Summary:
        """Judge each candidate on a lot, until it has as many failures as are wanted.

        A Ctrl-C ends it; the summary then has the cases that were judged until then.
        """
        started = time.monotonic()
        self.session.pool.start()
        source = CaseSource.for_candidates(self.request, self.session.pool, lot)
        summary = self._empty_summary(source)
        standings = _standings(summary, source, pending)
        try:
            self._judge(source, summary, standings, view)
            if lot.begins and not summary.ended:
                self._look_for_effects(standings)
            for standing in standings.values():
                self._explain(summary, standing.found, source, view)
        except KeyboardInterrupt:
            summary.ended = INTERRUPTED
        self.history = [*self.history, *source.handed_out][-MOST_HISTORY:]
        summary.seconds = round(time.monotonic() - started, 3)
        summary.placement = self.session.pool.place
        self._write_bundles(standings)
        return summary

    def _empty_summary(self, source: CaseSource) -> Summary:
        pool = self.session.pool
        summary = empty_summary(self.request, pool.size, self.part, len(source.share))
        summary.unseen = pool.placement.unseen
        summary.begun[source.lot_number] = BegunCases(source.lot_digest)
        return summary

    def _judge(
        self,
        source: CaseSource,
        summary: Summary,
        standings: Mapping[str, Standing],
        view: ProgressView,
    ) -> None:
        """Judge the lot and add each comparison to the standing of its candidate."""
        case: Case | None = None
        # Holds True if the case is counted as refused, and False if it is counted as judged.
        counted, situations, last = set[bool](), list[str](), time.monotonic()
        share = set(source.share)
        begun = summary.begun[source.lot_number]
        rounds = self._job_rounds(source, summary, standings)
        seen = map(self.session.judge, rounds)
        for comparison in map(mark_known, chain.from_iterable(seen)):
            standing = standings[comparison.candidate]
            if standing.is_done:
                continue
            with hold_back_signals():
                now = time.monotonic()
                seconds, last = now - last, now
                # Candidates that follow on the same case have the same object: count it once.
                if comparison.case is not case:
                    case, counted = comparison.case, set()
                    situations = situations_of(case)
                    if case in share:
                        begun.add(case)
                if standing.add(comparison, situations, seconds):
                    view.found(comparison)
                refused = comparison.verdict is Verdict.UNSUPPORTED
                if refused not in counted:
                    counted.add(refused)
                    (summary.refused if refused else summary.situations).update(situations)
                    summary.cases += not refused
            view.tell(summary)

    def _job_rounds(
        self, source: CaseSource, summary: Summary, standings: Mapping[str, Standing]
    ) -> Iterator[Iterator[Job]]:
        """Yield the jobs of one round after the other.

        A round must be judged before the next one is drawn, because the refusals in it decide
        what the next one has.
        """
        named = {name: locate(name) for name in standings}
        for jobs in source.rounds(standings):
            in_time = self._until_limit(jobs, source, summary, standings)
            yield (Job(case, named[name], self.request.against) for case, name in in_time)
            if summary.ended:
                return

    def _until_limit(
        self,
        jobs: list[tuple[Case, str]],
        source: CaseSource,
        summary: Summary,
        standings: Mapping[str, Standing],
    ) -> Iterator[tuple[Case, str]]:
        """Yield the jobs that are still needed, until the time is over."""
        for case, candidate in jobs:
            # The first case is judged even after the limit: a run without one shows nothing.
            has_begun = self.history or summary.cases or case is not jobs[0][0]
            if has_begun and time.monotonic() > self.until:
                summary.ended = LIMIT
                return
            standing = standings[candidate]
            if not standing.is_done and not source.is_given_up(standing):
                yield case, candidate

    def _look_for_effects(self, standings: Mapping[str, Standing]) -> None:
        """Find the settings without effect of each candidate that did not fail."""
        pool = self.session.pool
        for name, standing in standings.items():
            if not standing.tally.failed:
                candidate = locate(name)
                standing.tally.without_effect = [*standing.stated.without_effect(candidate, pool)]

    def _explain(
        self,
        summary: Summary,
        found: dict[str, Comparison],
        source: CaseSource,
        view: ProgressView,
    ) -> None:
        """Shrink each failure of a candidate, and name it by experiments."""
        for mark, failure in found.items():
            if can_shrink(failure):
                found[mark] = self._shrink_and_diagnose(failure, summary, source, view)

    def _shrink_and_diagnose(
        self, failure: Comparison, summary: Summary, source: CaseSource, view: ProgressView
    ) -> Comparison:
        view.tell(summary, f"shrinking {failure.candidate}")
        before = source.handed_out[: source.handed_out.index(failure.case)]
        seconds = min(SHRINK_SECONDS, self.until - time.monotonic())
        smaller = shrink_and_confirm(
            failure, self.session, [*self.history, *before], seconds
        ).smallest
        if not self.diagnoses:
            return smaller
        view.tell(summary, f"diagnosing {failure.candidate}")
        seconds = min(DIAGNOSE_SECONDS, self.until - time.monotonic())
        return add_diagnosis(smaller, self.session, seconds)

    def _write_bundles(self, standings: Mapping[str, Standing]) -> None:
        """Write a bundle of each failure, and its record into the tally.

        If the ranks could not start, all candidates share one fault, and one bundle.
        """
        bundles, campaign = dict[int, str](), campaign_record(self.request, self.part)
        failures = [(each.tally, f) for each in standings.values() for f in each.found.values()]
        for tally, failure in failures:
            shared = id(failure.fault or failure)
            if shared not in bundles:
                bundles[shared] = keep_bundle(failure, self.session.pool, campaign=campaign)
            tally.failures.append({**comparison_record(failure), "bundle": bundles[shared]})
