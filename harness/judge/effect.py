"""Which settings of a step have no consumer: without them a step does the very same.

A setting may change which numbers are computed, how they round, or what ranks send. One that
changes nothing of this in several cases is either not read, or only saves memory or time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.candidates import Named
from harness.case import Case
from harness.case.line import SETTING
from harness.case.settings import listed
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Outcome

# In fewer cases a setting may change nothing by chance, such as a bound that clips nothing; and so
# many are tried.
FEWEST, MOST = 4, 12


@dataclass(slots=True)
class Stated:
    """Some of the largest cases in which a step passed, for each value of a setting."""

    cases: dict[tuple[str, str], list[Case]] = field(default_factory=dict)

    def add(self, case: Case) -> None:
        for setting in case.settings:
            known = [*self.cases.get(setting, ()), case]
            self.cases[setting] = sorted(known, key=_tokens, reverse=True)[:MOST]

    def without_effect(self, candidate: Named, pool: RankPool) -> Iterator[str]:
        """Yield each value that changed nothing, if there are enough cases to say so.

        The first value that the limits of a candidate list is its default, which changes nothing.
        """
        for name, (_, *values) in listed(pool.limits(candidate)).items():
            for setting in ((name, value) for value in values):
                cases = self.cases.get(setting, ())
                if len(cases) >= FEWEST and not any(
                    _has_effect(case, setting, candidate, pool) for case in cases
                ):
                    yield f"{SETTING}{name}={setting[1]}"


def _tokens(case: Case) -> int:
    return case.tokens


def _has_effect(case: Case, setting: tuple[str, str], candidate: Named, pool: RankPool) -> bool:
    """Return whether a step does anything otherwise; refusing to run is something."""
    others = tuple(other for other in case.settings if other != setting)
    with_it, without = (
        pool.run(each, candidate) for each in (case, replace(case, settings=others))
    )
    return _seen_of(with_it) != _seen_of(without)


def _seen_of(outcome: Outcome) -> object:
    if not isinstance(outcome, Assembly):
        return type(outcome)
    trace = outcome.trace
    values = {key: trace[key].values.tobytes() for key in trace}
    return values, outcome.sent, outcome.local_rows, outcome.embedded
