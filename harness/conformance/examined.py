"""Examine one published candidate: at sp 1, then on all goldens, then on generated cases.

At sp 1 no library can be blamed: a failure there is one of our wiring, or of the step around the
exchange. Then nothing else is asked.
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
from harness.conformance.drawn import (
    draw_supported,
    generated_by_sp,
    goldens_by_sp,
    supported_values,
)
from harness.conformance.failures import smallest
from harness.conformance.pools import Pools
from harness.conformance.request import Request
from harness.conformance.stage import Stage, judge_stage
from harness.judge import Job
from harness.judge.known import mark_known

# How many cases are judged at sp 1.
SMOKE = 25


@dataclass(slots=True)
class Examined:
    """Everything that was found of one candidate."""

    candidate: str
    # The environment of its ranks, as `library@version`.
    home: str
    takes: dict[str, list[str]]
    stages: dict[str, Stage] = field(default_factory=dict)
    # Why it was examined at sp 1 only; empty if it was examined further.
    wiring: str = ""
    # A failure of each kind that is not listed, shrunk, and how many cases failed like it.
    failures: list[tuple[Comparison, int]] = field(default_factory=list)
    # The comparison of the smallest case of each listed bug.
    listed: dict[str, Comparison] = field(default_factory=dict)
    # Listed bugs whose smallest case did not fail as listed.
    stale: list[str] = field(default_factory=list)
    version: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    placement: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def unexamined(self) -> list[str]:
        """The requirements that were not examined; none if a failure is reported instead."""
        if self.wiring or self.failures:
            return []
        stages = [stage.coverage for stage in self.stages.values()]
        return list(sum(stages, Coverage()).lacks(shared=True))

    @property
    def leans(self) -> list[str]:
        """The tensors that lean to one side over the passing cases of all stages."""
        leanings = (stage.leanings for stage in self.stages.values())
        return list(sum(leanings, Leanings()).lines())

    @property
    def verdicts(self) -> Counter[str]:
        """The verdicts of all stages together."""
        return sum((stage.verdicts for stage in self.stages.values()), Counter[str]())


def examine(name: str, goldens: Mapping[str, Case], request: Request) -> Examined:
    """Examine one candidate."""
    started = time.monotonic()
    named = locate(name)
    candidate = named.load()
    assert isinstance(candidate, Published)
    assert named.environment
    takes = supported_values(candidate, request)
    examined = Examined(name, named.home, takes)
    examined.packages, examined.version = named.environment.installed, named.environment.release
    with Pools(examined.home, request) as pools:
        smoke = judge_stage(draw_supported(candidate, takes, 1, SMOKE, request), candidate, pools)
        examined.stages["sp 1"] = smoke
        if smoke.first:
            examined.failures = smallest(smoke, pools)
            examined.wiring = "at sp 1 it is not plain training"
        elif not smoke.judged():
            examined.wiring = "nothing that was drawn at sp 1 could be run"
        else:
            _examine_further(examined, candidate, goldens, pools, request)
        examined.placement = pools.place
    examined.seconds = round(time.monotonic() - started, 1)
    return examined


def _examine_further(
    examined: Examined,
    candidate: Published,
    goldens: Mapping[str, Case],
    pools: Pools,
    request: Request,
) -> None:
    takes = examined.takes
    batches = goldens_by_sp(goldens.values(), candidate, takes)
    examined.stages["goldens"] = judge_stage(batches, candidate, pools)
    for sp, asked in generated_by_sp(candidate, takes, request):
        examined.stages[f"sp {sp}"] = judge_stage(asked, candidate, pools)
    for stage in examined.stages.values():
        examined.failures += smallest(stage, pools)
    for bug in bugs(candidate.library):
        if bug.is_in(examined.version) and can_show(candidate, bug):
            comparison = judge_listed_bug(bug, locate(candidate.name), pools)
            examined.listed[bug.key] = comparison
            # If the case fails as another listed bug does, this bug may hide behind that one.
            if mark_known(comparison).verdict is not Verdict.KNOWN:
                examined.stale.append(bug.key)


def can_show(candidate: Published, bug: Bug) -> bool:
    """Whether a candidate has a listed bug, and supports its smallest case."""
    return candidate.key in bug.candidate and candidate.supports(bug.case) is None


def judge_listed_bug(bug: Bug, named: Named, pools: Pools) -> Comparison:
    """Judge the smallest case of a listed bug."""
    return pools.of(bug.case.ranks).judge_one(Job(bug.case, named))
