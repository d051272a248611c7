"""Run candidates on cases without comparing them with a reference."""

from collections.abc import Iterable

from hypothesis import settings

from harness.candidates import locate
from harness.case import Case
from harness.ranks.pool import RankPool
from harness.trace import Assembly
from properties.helpers.places import PLANTED

DIALECTS = ("native-gather", "native-local")
# For tests that need several runs for each example: two fifths of the examples of the profile.
fewer_examples = settings(max_examples=settings().max_examples * 2 // 5)


def planted_step(name: str) -> str:
    return f"{PLANTED / 'steps.py'}:{name}"


def planted_drift(name: str) -> str:
    return f"{PLANTED / 'drifting.py'}:{name}"


def planted_probe(name: str) -> str:
    return f"{PLANTED / 'probes.py'}:{name}"


def run_all(
    pool: RankPool, jobs: Iterable[tuple[Case, str]], *, traced: bool = False
) -> list[Assembly]:
    """Run each candidate on its case; all must complete. Ranks stay busy between the runs."""
    jobs = list(jobs)
    for case, name in jobs:
        pool.submit(case, locate(locate(name).full), traced=traced)
    outcomes = [pool.collect() for _ in jobs]
    assemblies = [outcome for outcome in outcomes if isinstance(outcome, Assembly)]
    assert len(assemblies) == len(outcomes), outcomes
    return assemblies
