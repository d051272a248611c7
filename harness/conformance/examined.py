"""One published candidate: first at sp 1, then on all goldens, then on generated cases.

At sp 1 no library can be blamed: what differs there is our wiring, or the step around the
exchange, and then nothing else is asked.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.campaign.bias import Leanings
from harness.campaign.coverage import Coverage
from harness.candidates import Named, locate
from harness.candidates.published.bugs import Bug, bugs
from harness.candidates.published.library import Published
from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.conformance.drawn import by_sp, on_meshes, runnable, what_it_takes
from harness.conformance.failures import smallest
from harness.conformance.pools import Pools
from harness.conformance.request import Request
from harness.conformance.stage import Stage, stage_of
from harness.judge import Job
from harness.judge.known import recognised

SMOKE = 25


@dataclass(slots=True)
class Examined:
    """What was found of one candidate."""

    candidate: str
    # Where its ranks ran, and the version that this was.
    home: str
    takes: dict[str, list[str]]
    stages: dict[str, Stage] = field(default_factory=dict)
    # Why it was not asked on, if it was not.
    wiring: str = ""
    # One of each kind that is not listed as known, shrunk, and how many there were.
    failures: list[tuple[Comparison, int]] = field(default_factory=list)
    # What the smallest case of each listed bug came to.
    listed: dict[str, Comparison] = field(default_factory=dict)
    # Bugs that are listed and were not seen.
    stale: list[str] = field(default_factory=list)
    version: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    placement: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def unexamined(self) -> list[str]:
        """What it was asked for and not examined; where it fails, that says enough."""
        if self.wiring or self.failures:
            return []
        stages = [stage.coverage for stage in self.stages.values()]
        return list(sum(stages, Coverage()).lacks(shared=True))

    @property
    def leans(self) -> list[str]:
        """What is off by the same in every case, and by too little to be told in one."""
        leanings = (stage.leanings for stage in self.stages.values())
        return list(sum(leanings, Leanings()).told())

    @property
    def verdicts(self) -> Counter[str]:
        """Counts of all stages together."""
        return sum((stage.verdicts for stage in self.stages.values()), Counter[str]())


def examine(name: str, goldens: Mapping[str, Case], request: Request) -> Examined:
    """Everything that is asked of one candidate."""
    started = time.monotonic()
    named = locate(name)
    candidate = named.load()
    assert isinstance(candidate, Published)
    assert named.environment
    takes = what_it_takes(candidate, request.seed)
    examined = Examined(name, named.home, takes)
    examined.packages, examined.version = named.environment.installed, named.environment.release
    with Pools(examined.home, request) as pools:
        smoke = stage_of(runnable(candidate, takes, 1, SMOKE, request), candidate, pools)
        examined.stages["sp 1"] = smoke
        if smoke.first:
            examined.failures = smallest(smoke, pools)
            examined.wiring = "at sp 1 it is not plain training"
        elif not smoke.judged():
            examined.wiring = "nothing that was drawn at sp 1 could be run"
        else:
            _go_on(examined, candidate, goldens, pools, request)
        examined.placement = pools.place
    examined.seconds = round(time.monotonic() - started, 1)
    return examined


def _go_on(
    examined: Examined,
    candidate: Published,
    goldens: Mapping[str, Case],
    pools: Pools,
    request: Request,
) -> None:
    takes = examined.takes
    batches = on_meshes(goldens.values(), candidate, takes)
    examined.stages["goldens"] = stage_of(batches, candidate, pools)
    for sp, asked in by_sp(candidate, takes, request):
        examined.stages[f"sp {sp}"] = stage_of(asked, candidate, pools)
    for stage in examined.stages.values():
        examined.failures += smallest(stage, pools)
    for bug in bugs(candidate.library):
        if bug.is_in(examined.version) and can_show(candidate, bug):
            examined.listed[bug.key] = seen = as_listed(bug, locate(candidate.name), pools)
            # One may hide behind another that is listed too.
            if recognised(seen).verdict is not Verdict.KNOWN:
                examined.stale.append(bug.key)


def can_show(candidate: Published, bug: Bug) -> bool:
    """Whether the smallest case of a bug is for this candidate."""
    return candidate.key in bug.candidate and candidate.supports(bug.case) is None


def as_listed(bug: Bug, named: Named, pools: Pools) -> Comparison:
    """What the smallest case of a listed bug comes to now."""
    return pools.of(bug.case.ranks).judge_one(Job(bug.case, named))
