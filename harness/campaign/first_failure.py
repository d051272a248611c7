"""Find the first failure of a campaign again, from its request: `repro --seed`."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.campaign.case_source import CaseSource
from harness.campaign.request import Request
from harness.campaign.standing import Standing
from harness.campaign.tally import Tally, worst
from harness.candidates import locate
from harness.case import Case
from harness.compare import Comparison
from harness.engine.lot import WHOLE
from harness.failure.replay import Shown
from harness.failure.smallest import shrink_and_confirm
from harness.judge import Job, Session
from harness.judge.known import mark_known


@dataclass(frozen=True, slots=True)
class Passed:
    """The outcome of a campaign in which no case failed."""

    verdict: str
    cases: int
    # Requirements that were not examined often enough.
    unexamined: tuple[str, ...] = ()

    def text(self) -> str:
        refused = ", and that is too few" if self.verdict == "FAULT" else ""
        too_little = f"; judged on {'; '.join(self.unexamined)}" if self.unexamined else ""
        return f"{self.verdict}  none of {self.cases} cases fails{refused}{too_little}"

    @property
    def comparison(self) -> None:
        """No comparison is to be shown."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def find_first_failure(request: Request, session: Session, *, shrink: bool) -> Shown | Passed:
    """Judge a campaign as `check` does until a case fails.

    Return that failure, shrunk if `shrink` is set, or `Passed` if no case fails.
    """
    session.pool.start()
    named = {name: locate(name) for name in request.candidates}
    tallies = {name: Tally() for name in named}
    earlier: list[Case] = []
    for lot in WHOLE.lots(request.count):
        source = CaseSource.for_candidates(request, session.pool, lot)
        standings = {name: Standing(Tally(coverage=source.requested_coverage())) for name in named}
        for jobs in source.rounds(standings):
            asked = (Job(case, named[name], request.against) for case, name in jobs)
            for comparison in map(mark_known, session.judge(asked)):
                standings[comparison.candidate].add(comparison)
                if comparison.verdict.failed:
                    earlier += source.handed_out[: source.handed_out.index(comparison.case)]
                    return _shown(comparison, session, earlier, shrink=shrink)
        earlier += source.handed_out
        tallies = {name: tallies[name] + standing.tally for name, standing in standings.items()}
        if all(tally.lacking for tally in tallies.values()):
            break
    judged = max(tally.judged for tally in tallies.values())
    unexamined = tuple(gap for tally in tallies.values() for gap in tally.unexamined)
    return Passed(worst(tally.verdict for tally in tallies.values()), judged, unexamined)


def _shown(failure: Comparison, session: Session, earlier: list[Case], *, shrink: bool) -> Shown:
    shown = Shown(failure)
    if shrink and shown.failed:
        return Shown(shrink_and_confirm(failure, session, earlier).smallest)
    return shown
