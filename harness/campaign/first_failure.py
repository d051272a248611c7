"""The first failure of a campaign, found again from its request."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.campaign.case_source import Supply
from harness.campaign.request import Request
from harness.campaign.tally import Tally, worst
from harness.candidates import locate
from harness.case import Case
from harness.compare import Comparison
from harness.engine.lot import WHOLE
from harness.failure.replay import Shown
from harness.failure.smallest import smallest
from harness.judge import Job, Session
from harness.judge.known import recognised


@dataclass(frozen=True, slots=True)
class Passed:
    """A campaign in which nothing failed."""

    verdict: str
    cases: int
    # What was asked for and not examined.
    unexamined: tuple[str, ...] = ()

    def text(self) -> str:
        refused = ", and that is too few" if self.verdict == "FAULT" else ""
        too_little = f"; judged on {'; '.join(self.unexamined)}" if self.unexamined else ""
        return f"{self.verdict}  none of {self.cases} cases fails{refused}{too_little}"

    @property
    def comparison(self) -> None:
        """There is none to be shown."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def look_for(request: Request, session: Session, *, shrink: bool) -> Shown | Passed:
    """The first failure of a campaign, drawn and shrunk as `check` does; kept."""
    session.pool.start()
    named = {name: locate(name) for name in request.candidates}
    tallies = {name: Tally() for name in named}
    earlier: list[Case] = []
    for lot in WHOLE.lots(request.count):
        supply = Supply(request, session.pool.size, lot)
        here = {name: Tally(coverage=supply.asked()) for name in named}
        for jobs in supply.rounds(here):
            asked = (Job(case, named[name], request.against) for case, name in jobs)
            for comparison in map(recognised, session.judge(asked)):
                here[comparison.candidate].add(comparison)
                if comparison.verdict.failed:
                    earlier += supply.given[: supply.given.index(comparison.case)]
                    return _shown(comparison, session, earlier, shrink=shrink)
        earlier += supply.given
        tallies = {name: tallies[name] + tally for name, tally in here.items()}
        if all(tally.lacking for tally in tallies.values()):
            break
    judged = max(tally.judged for tally in tallies.values())
    unexamined = tuple(what for tally in tallies.values() for what in tally.unexamined)
    return Passed(worst(tally.verdict for tally in tallies.values()), judged, unexamined)


def _shown(failure: Comparison, session: Session, earlier: list[Case], *, shrink: bool) -> Shown:
    shown = Shown(failure)
    if shrink and shown.failed:
        return Shown(smallest(failure, session, earlier).smallest)
    return shown
