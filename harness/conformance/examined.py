"""One published candidate: first at sp 1, then on all goldens, then on generated cases.

At sp 1 no library can be blamed: what differs there is our wiring, or the step around the
exchange, and then nothing else is asked.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args

from harness.candidates import home, load
from harness.candidates.environment import Environment
from harness.candidates.known import Bug, bugs
from harness.candidates.published import Published
from harness.case import Case, Dtype, InvalidCase, LossContract, Model
from harness.compare import Comparison, Verdict
from harness.conformance.tally import Tally, name_of
from harness.fresh import confirmed
from harness.known import listed, recognised
from harness.ranks.placement import Placement
from harness.ranks.pool import RankPool
from harness.reduce import reduce
from harness.run import evaluate, evaluate_all, verdict_only
from harness.search import generate
from harness.strategies import cases

DTYPES: tuple[Dtype, ...] = ("fp64", "fp32", "bf16")
SPS = (2, 4)
MOST_RANKS = 4
SMOKE = 25
# Enough to tell what a candidate takes.
PROBED = 400
# A candidate that refuses most of what is drawn is asked about no more than this many times.
DRAWN_AT_MOST = 6
# Each costs a launch of ranks; after so many the rest of a stage would tell nothing new.
MOST_FAULTS = 4
SHRINK_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of every candidate."""

    # Generated cases for each sp.
    count: int = 100
    seed: int = 0
    placement: Placement = field(default_factory=Placement)
    deadline: float = 60.0


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
    seconds: float = 0.0


class Pools:
    """Ranks in one candidate's environment; exactly as many as a case needs.

    A library may make process groups of its own over all ranks there are.
    """

    def __init__(self, where: str, request: Request) -> None:
        self._where, self._request = where, request
        self._stack = ExitStack()
        self._pools: dict[int, RankPool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def of(self, ranks: int) -> RankPool:
        if ranks not in self._pools:
            pool = RankPool(
                ranks,
                self._request.placement,
                home=self._where,
                deadline=self._request.deadline,
            )
            self._pools[ranks] = self._stack.enter_context(pool)
        return self._pools[ranks]


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
        smoke = _stage(_drawn(candidate, takes, 1, SMOKE, request), name, pools)
        found.stages["sp 1"] = smoke
        if smoke.first:
            found.failures = _smallest(smoke, pools)
            found.wiring = "at sp 1 it is not plain training"
        elif not smoke.judged():
            found.wiring = "nothing that was drawn at sp 1 could be run"
        else:
            _go_on(found, candidate, goldens, pools, request)
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
    found.stages["goldens"] = _stage(_on_meshes(goldens.values(), takes), name, pools)
    for sp in SPS:
        drawn = _drawn(candidate, takes, sp, request.count, request)
        found.stages[f"sp {sp}"] = _stage(drawn, name, pools)
    for tally in found.stages.values():
        found.failures += _smallest(tally, pools)
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


def what_it_takes(candidate: Published, seed: int) -> dict[str, list[str]]:
    """The finest dtype, and the loss contracts and architectures, of which it takes any case."""
    probe = cases(
        sps=(1, *SPS),
        max_ranks=MOST_RANKS,
        dtypes=DTYPES,
        architectures=get_args(Model),
        max_steps=1,
    )
    taken = [c for c in generate(probe, PROBED, seed) if candidate.supports(c) is None]
    fields: dict[str, Sequence[Any]] = {
        "dtype": DTYPES,
        "loss": get_args(LossContract),
        "model": get_args(Model),
    }
    found = {
        name: [value for value in values if any(getattr(c, name) == value for c in taken)]
        for name, values in fields.items()
    }
    found["dtype"] = found["dtype"][:1]
    return found


def _drawn(
    candidate: Published, takes: dict[str, list[Any]], sp: int, count: int, request: Request
) -> Iterator[Case]:
    """Cases until so many of them can be run, in the order of the ranks that they need."""
    if not all(takes.values()):
        return
    strategy = cases(
        sps=(sp,),
        dps=(1,) if sp == 1 else (1, 2),
        max_ranks=MOST_RANKS,
        dtypes=takes["dtype"],
        losses=takes["loss"],
        architectures=takes["model"],
    )
    chosen, left = list[Case](), count
    for case in generate(strategy, DRAWN_AT_MOST * count, request.seed):
        chosen.append(case)
        left -= candidate.supports(case) is None
        if not left:
            break
    yield from sorted(chosen, key=lambda case: case.ranks)


def of_each_sp(
    candidate: Published, takes: dict[str, list[Any]], pools: Pools, request: Request
) -> Tally:
    """Generated cases at every sp."""
    drawn = [case for sp in SPS for case in _drawn(candidate, takes, sp, request.count, request)]
    return _stage(drawn, candidate.name, pools)


def _on_meshes(goldens: Iterable[Case], takes: dict[str, list[Any]]) -> Iterator[Case]:
    """Each golden's batch at every sp, in the dtype that the candidate takes."""
    found = []
    for golden in goldens:
        for sp in SPS:
            try:
                case = replace(golden, sp=sp, dtype=takes["dtype"][0])
            except InvalidCase:
                continue
            if case.ranks <= MOST_RANKS:
                found.append(case)
    yield from sorted(found, key=lambda case: case.ranks)


def _stage(asked: Iterable[Case], name: str, pools: Pools) -> Tally:
    tally = Tally()
    by_ranks: dict[int, list[Case]] = {}
    for case in asked:
        by_ranks.setdefault(case.ranks, []).append(case)
    for ranks, batch in by_ranks.items():
        faults = 0
        for comparison in evaluate_all(((case, name) for case in batch), pools.of(ranks)):
            seen = recognised(comparison)
            tally.add(seen)
            faults += comparison.fault is not None
            if faults == MOST_FAULTS:
                break
    return tally


def _smallest(tally: Tally, pools: Pools) -> list[tuple[Comparison, int]]:
    """One failure of each kind, a divergence shrunk, and seen on ranks that ran nothing before."""
    return [(_shrunk(first, pools), count) for first, count in tally.first.values()]


def _shrunk(first: Comparison, pools: Pools) -> Comparison:
    if first.verdict is not Verdict.DIVERGED:
        return first
    found = reduce(
        first,
        lambda case: verdict_only(case, first.candidate, pools.of(case.ranks)),
        seconds=SHRINK_SECONDS,
    )
    case = found.smallest.case
    small = confirmed(case, first, pools.of(case.ranks))
    # On the way down one may slip into another fault, which is listed.
    if small is None or recognised(small).verdict is Verdict.KNOWN:
        return first
    return small


def totals(stages: Mapping[str, Tally]) -> Counter[str]:
    """All verdicts together."""
    return sum((tally.verdicts for tally in stages.values()), Counter[str]())
