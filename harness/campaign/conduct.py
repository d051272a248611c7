"""Conduct a campaign: hand its lots to an engine, and count what they come to.

Lots are judged in any order, and counted in the order of their numbers. A candidate is dropped
when enough failures of it are known, or when it was judged on too few cases of a lot. A lot that
was begun before that, for other candidates or for more failures, is judged again. So a campaign
has the same result wherever its lots are judged.
"""

from collections import deque
from collections.abc import Callable, Sequence

from harness.campaign.coverage import Coverage
from harness.campaign.pending import PendingCandidate, PendingCandidates
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, Summary
from harness.campaign.tally import distinct_failures
from harness.campaign.uninterrupted import hold_back_signals
from harness.engine.engine import Engine, Losses
from harness.engine.lot import Lot

# One job of an engine: a lot, and the candidates to judge on it.
LotJob = tuple[Lot, PendingCandidates]
# Called with each lot that is counted, in the order of lots.
OnCounted = Callable[[Lot, PendingCandidates, Summary], None]


class Campaign:
    """The lots of a campaign, and the summary of those that are counted."""

    def __init__(self, request: Request, lots: Sequence[Lot], on_counted: OnCounted) -> None:
        self._request = request
        self._pending: PendingCandidates = tuple(
            PendingCandidate(name, wanted=request.keep_going) for name in request.candidates
        )
        self._on_counted = on_counted
        self._summary: Summary | None = None
        # Lots that are not counted yet, in order, and those of them that no engine has begun.
        self._uncounted, self._waiting = deque(lots), deque(lots)
        # Lots that are judged and not counted yet, and for which candidates they were judged.
        self._judged: dict[Lot, tuple[PendingCandidates, Summary]] = {}
        self._losses = Losses[Lot]()
        # Whether no further lot may begin, and whether that is because of a Ctrl-C.
        self._is_ending = self._is_stopped = False

    def run(
        self,
        engine: Engine[LotJob, Summary],
        known: dict[Lot, tuple[PendingCandidates, Summary]],
    ) -> Summary:
        """Judge all lots but those that are `known`; return the summary of all of them.

        The first Ctrl-C stops the engine and counts what it has judged by then. A second one
        returns at once.
        """
        self._judged |= known
        self._waiting = deque(lot for lot in self._waiting if lot not in known)
        while True:
            try:
                if not self._advance(engine):
                    return self._complete_summary()
            except KeyboardInterrupt:
                if self._is_stopped:
                    # The engine has had time to report the lots that were under way.
                    return self._complete_summary()
                self._is_ending = self._is_stopped = True
                engine.stop()

    def _advance(self, engine: Engine[LotJob, Summary]) -> bool:
        """Count, begin and await lots; return whether there is more to do."""
        with hold_back_signals():
            self._count_in_order()
        if not self._uncounted or not self._pending:
            return False
        while self._waiting and engine.has_room and not self._is_ending:
            engine.begin((self._waiting.popleft(), self._pending))
        if not engine.is_busy and (self._is_ending or not self._waiting):
            return False
        finished = engine.finished()
        if finished is None:
            return True
        (lot, pending), summary = finished
        with hold_back_signals():
            if summary is None:
                self._requeue(lot)
            else:
                self._is_ending = self._is_ending or bool(summary.ended)
                self._judged[lot] = pending, summary
        return True

    def _count_in_order(self) -> None:
        """Count judged lots, up to the first one that is not judged yet."""
        while (
            self._uncounted
            and self._pending
            and (judged := self._judged.pop(self._uncounted[0], None))
        ):
            pending, summary = judged
            if pending != self._pending and not self._is_ending:
                # The lot was begun before a candidate failed in an earlier lot.
                self._waiting.appendleft(self._uncounted[0])
                return
            lot = self._uncounted.popleft()
            self._add(summary)
            if not summary.ended:
                self._on_counted(lot, pending, summary)

    def _requeue(self, lot: Lot) -> None:
        """Have a lost lot judged again; raise `Lost` if it was lost too often."""
        if not self._is_stopped:
            self._losses.add(lot)
        self._waiting.appendleft(lot)

    def _add(self, summary: Summary) -> None:
        """Add the summary of a lot, and drop candidates that need not be judged any further."""
        self._summary = self._summary + summary if self._summary else summary
        most_failures = self._request.keep_going
        for tally in self._summary.tallies.values() if most_failures > 1 else ():
            tally.failures = distinct_failures(tally.failures)
        tallies = {
            entry.candidate: self._summary.tallies[entry.candidate] for entry in self._pending
        }
        self._pending = tuple(
            PendingCandidate(name, tuple(tally.marks), most_failures - len(tally.failures))
            for name, tally in tallies.items()
            if len(tally.failures) < most_failures and not tally.lacking
        )

    def _complete_summary(self) -> Summary:
        """Return the summary of the whole campaign, with all cases that a candidate lacks.

        Raise `KeyboardInterrupt` if the campaign was stopped before any lot was judged.
        """
        for lot in [lot for lot in self._uncounted if self._is_ending and lot in self._judged]:
            self._uncounted.remove(lot)
            self._add(self._judged.pop(lot)[1])
        if self._summary is None:
            raise KeyboardInterrupt
        self._summary.size += sum(map(len, self._uncounted))
        if self._is_stopped:
            self._summary.ended = INTERRUPTED
        for tally in self._summary.tallies.values():
            if tally.failures:
                # How much else was requested of it depends on how the campaign was cut into lots.
                tally.coverage = Coverage()
            elif tally.lacking:
                tally.lacking = self._summary.size - tally.judged
        return self._summary
