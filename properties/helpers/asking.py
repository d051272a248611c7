"""Cases through a pool of ranks, without a reference to compare with."""

from collections.abc import Iterable

from hypothesis import settings

from harness.candidates import locate
from harness.case import Case
from harness.ranks.pool import RankPool
from harness.trace import Assembly
from properties.helpers.places import PLANTED

DIALECTS = ("native-gather", "native-local")
# Of the examples that the profile has: for what takes several runs each.
few = settings(max_examples=settings().max_examples * 2 // 5)


def mutant(name: str) -> str:
    return f"{PLANTED / 'steps.py'}:{name}"


def drifting(name: str) -> str:
    return f"{PLANTED / 'drifting.py'}:{name}"


def probe(name: str) -> str:
    return f"{PLANTED / 'probes.py'}:{name}"


def ask(
    pool: RankPool, jobs: Iterable[tuple[Case, str]], *, traced: bool = False
) -> list[Assembly]:
    """What candidates left behind, each on its case, all under way at once."""
    jobs = list(jobs)
    for case, name in jobs:
        pool.submit(case, locate(locate(name).full), traced=traced)
    outcomes = [pool.collect() for _ in jobs]
    assemblies = [outcome for outcome in outcomes if isinstance(outcome, Assembly)]
    assert len(assemblies) == len(outcomes), outcomes
    return assemblies
