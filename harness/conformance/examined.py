"""One published candidate: first at sp 1, then on all goldens, then on generated cases.

At sp 1 no library can be blamed: what differs there is our wiring, or the step around the
exchange, and then nothing else is asked.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.candidates import home, load
from harness.candidates.published.environment import Environment
from harness.candidates.published.known import Bug, bugs
from harness.candidates.published.library import Published
from harness.case import Case
from harness.compare import Comparison
from harness.conformance.drawn import by_sp, drawn, on_meshes, what_it_takes
from harness.conformance.failures import smallest
from harness.conformance.pools import Pools
from harness.conformance.request import Request
from harness.conformance.stage import tallied
from harness.conformance.tally import Tally, name_of
from harness.judge import evaluate
from harness.judge.known import listed

SMOKE = 25


@dataclass(slots=True)
class Examined:
    """What was found of one candidate."""

    candidate: str
    # Where its ranks ran, and the version that this was.
    home: str
    takes: dict[str, list[str]]
    stages: dict[str, Tally] = field(default_factory=dict)
    # Why it was not asked on, if it was not.
    wiring: str = ""
    # One of each kind that is not listed as known, shrunk, and how many there were.
    failures: list[tuple[Comparison, int]] = field(default_factory=list)
    # What the smallest case of each listed bug came to.
    listed: dict[str, Comparison] = field(default_factory=dict)
    # Those that are listed and were not seen.
    stale: list[str] = field(default_factory=list)
    version: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    placement: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def examine(name: str, goldens: Mapping[str, Case], request: Request) -> Examined:
    """Everything that is asked of one candidate."""
    started = time.monotonic()
    candidate = load(name)
    assert isinstance(candidate, Published)
    takes = what_it_takes(candidate, request.seed)
    found = Examined(name, home(name), takes)
    version = found.home.partition("@")[2]
    found.packages = Environment(candidate.library, version).installed
    found.version = Environment(candidate.library, version).release
    with Pools(found.home, request) as pools:
        smoke = tallied(drawn(candidate, takes, 1, SMOKE, request), name, pools)
        found.stages["sp 1"] = smoke
        if smoke.first:
            found.failures = smallest(smoke, pools)
            found.wiring = "at sp 1 it is not plain training"
        elif not smoke.judged():
            found.wiring = "nothing that was drawn at sp 1 could be run"
        else:
            _go_on(found, candidate, goldens, pools, request)
        found.placement = pools.place
    found.seconds = round(time.monotonic() - started, 1)
    return found


def _go_on(
    found: Examined,
    candidate: Published,
    goldens: Mapping[str, Case],
    pools: Pools,
    request: Request,
) -> None:
    name, takes = candidate.name, found.takes
    found.stages["goldens"] = tallied(on_meshes(goldens.values(), takes), name, pools)
    for sp, asked in by_sp(candidate, takes, request):
        found.stages[f"sp {sp}"] = tallied(asked, name, pools)
    for tally in found.stages.values():
        found.failures += smallest(tally, pools)
    for bug in bugs(candidate.library):
        if bug.is_in(found.version) and can_show(candidate, bug):
            found.listed[bug.key] = seen = as_listed(bug, name, pools)
            # One may hide behind another that is listed too.
            if name_of(seen) not in bug.looks and listed(seen) is None:
                found.stale.append(bug.key)


def can_show(candidate: Published, bug: Bug) -> bool:
    """Whether the smallest case of a bug is for this candidate."""
    return candidate.key in bug.candidate and candidate.supports(bug.case) is None


def as_listed(bug: Bug, name: str, pools: Pools) -> Comparison:
    """What the smallest case of a listed bug comes to now."""
    return evaluate(bug.case, name, pools.of(bug.case.ranks))


def of_each_sp(
    candidate: Published, takes: dict[str, list[Any]], pools: Pools, request: Request
) -> Tally:
    """Generated cases at every sp."""
    asked = [case for _, cases in by_sp(candidate, takes, request) for case in cases]
    return tallied(asked, candidate.name, pools)


def totals(stages: Mapping[str, Tally]) -> Counter[str]:
    """All verdicts together."""
    return sum((tally.verdicts for tally in stages.values()), Counter[str]())
