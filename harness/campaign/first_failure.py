"""The first failure of a campaign, found again from its request."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.campaign.check import draw
from harness.campaign.request import Request
from harness.campaign.summary import Tally, worst
from harness.failure.replay import Shown
from harness.failure.smallest import smallest
from harness.judge import evaluate_all
from harness.ranks.pool import RankPool


@dataclass(frozen=True, slots=True)
class Passed:
    """A campaign in which nothing failed."""

    verdict: str
    cases: int

    def text(self) -> str:
        refused = ", but most were refused" if self.verdict == "FAULT" else ""
        return f"{self.verdict}  none of {self.cases} cases fails{refused}"

    @property
    def comparison(self) -> None:
        """There is none to be shown."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def look_for(request: Request, pool: RankPool, *, shrink: bool) -> Shown | Passed:
    """The first failure of a campaign, drawn and shrunk as `check` does; kept."""
    pool.start()
    batch = draw(request, pool.size)
    tallies = {candidate: Tally() for candidate in request.candidates}
    jobs = ((case, candidate) for case in batch for candidate in request.candidates)
    for comparison in evaluate_all(jobs, pool):
        tallies[comparison.candidate].add(comparison)
        if comparison.verdict.failed:
            shown = Shown(comparison)
            if shrink and shown.failed:
                earlier = batch[: batch.index(comparison.case)]
                shown = Shown(smallest(comparison, pool, earlier).smallest)
            return shown
    return Passed(worst(tally.verdict for tally in tallies.values()), len(batch))
