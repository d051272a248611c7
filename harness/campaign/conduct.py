"""A campaign, from its first lot to its last: who judges which, and what they come to.

Lots are judged in any order and counted in theirs. A candidate of which enough failures are known,
or that was judged on too few cases of a lot, is asked no more. Where others were asked for a later
lot by then, or more of them, that is judged anew. So a campaign comes to the same wherever its
lots are judged.
"""

from collections import deque
from collections.abc import Callable, Sequence

from harness.campaign.coverage import Coverage
from harness.campaign.pending import Ask, Asked
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, Summary
from harness.campaign.tally import different
from harness.campaign.uninterrupted import undisturbed
from harness.engine.engine import Engine, Losses
from harness.engine.lot import Lot

# What a pool is given: cases, and who is to be judged on them.
Share = tuple[Lot, Asked]
# Called with each lot that is counted, in the order of lots.
Counted = Callable[[Lot, Asked, Summary], None]


class Campaign:
    """Its lots, and what those came to that are counted."""

    def __init__(self, request: Request, lots: Sequence[Lot], counted: Counted) -> None:
        self._request = request
        self._asked: Asked = tuple(
            Ask(name, wanted=request.keep_going) for name in request.candidates
        )
        self._counted = counted
        self._summary: Summary | None = None
        # In order, those that are not counted yet; those that nobody has begun; and what others
        # came to.
        self._left, self._waiting = deque(lots), deque(lots)
        self._came: dict[Lot, tuple[Asked, Summary]] = {}
        self._losses = Losses[Lot]()
        self._ended = self._stopped = False

    def run(
        self, engine: Engine[Share, Summary], known: dict[Lot, tuple[Asked, Summary]]
    ) -> Summary:
        """Judge all but what is known, and say what it comes to."""
        self._came |= known
        self._waiting = deque(lot for lot in self._waiting if lot not in known)
        while True:
            try:
                if not self._goes_on(engine):
                    return self._whole()
            except KeyboardInterrupt:
                if self._stopped:
                    # Engine had time enough to tell of what they are about.
                    return self._whole()
                self._ended = self._stopped = True
                engine.stop()

    def _goes_on(self, engine: Engine[Share, Summary]) -> bool:
        with undisturbed():
            self._count()
        if not self._left or not self._asked:
            return False
        while self._waiting and engine.has_room and not self._ended:
            engine.begin((self._waiting.popleft(), self._asked))
        if not engine.is_busy and (self._ended or not self._waiting):
            return False
        came = engine.finished()
        if came is None:
            return True
        (lot, asked), found = came
        with undisturbed():
            if found is None:
                self._lose(lot)
            else:
                self._ended = self._ended or bool(found.ended)
                self._came[lot] = asked, found
        return True

    def _count(self) -> None:
        """All that came whose turn it is."""
        while self._left and self._asked and (came := self._came.pop(self._left[0], None)):
            asked, found = came
            if asked != self._asked and not self._ended:
                # It was begun before somebody failed.
                self._waiting.appendleft(self._left[0])
                return
            lot = self._left.popleft()
            self._add(found)
            if not found.ended:
                self._counted(lot, asked, found)

    def _lose(self, lot: Lot) -> None:
        if not self._stopped:
            self._losses.add(lot)
        self._waiting.appendleft(lot)

    def _add(self, found: Summary) -> None:
        self._summary = self._summary + found if self._summary else found
        going = self._request.keep_going
        for tally in self._summary.tallies.values() if going > 1 else ():
            tally.failures = different(tally.failures)
        tallies = {ask.candidate: self._summary.tallies[ask.candidate] for ask in self._asked}
        self._asked = tuple(
            Ask(name, tuple(tally.marks), going - len(tally.failures))
            for name, tally in tallies.items()
            if len(tally.failures) < going and not tally.lacking
        )

    def _whole(self) -> Summary:
        """With all that was judged, and what it lacks who was not asked to the end."""
        for lot in [lot for lot in self._left if self._ended and lot in self._came]:
            self._left.remove(lot)
            self._add(self._came.pop(lot)[1])
        if self._summary is None:
            raise KeyboardInterrupt
        self._summary.size += sum(map(len, self._left))
        if self._stopped:
            self._summary.ended = INTERRUPTED
        for tally in self._summary.tallies.values():
            if tally.failures:
                # What else it would have been asked for depends on where its lots were judged.
                tally.coverage = Coverage()
            elif tally.lacking:
                tally.lacking = self._summary.size - tally.judged
        return self._summary
