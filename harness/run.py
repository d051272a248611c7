"""From a case to a comparison: the one place where all parts meet."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import torch

from harness.candidates import Candidate, load, resolve
from harness.case import Case
from harness.compare import Comparison, Verdict, agree, compare, faulted, unsupported
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference, rowwise
from harness.trace import Assembly, Fault, Kind, Trace

# How many cases the ranks may have in hand while the controller computes references.
AHEAD = 4


def evaluate(case: Case, candidate: str, pool: RankPool) -> Comparison:
    """Judge one case; if it diverges, run it again fully traced to find the first place."""
    return next(evaluate_all([case], candidate, pool))


def evaluate_all(
    cases: Iterable[Case], candidate: str, pool: RankPool
) -> Iterator[Comparison]:
    """Judge cases in order. Ranks stay busy while references are computed and judged."""
    loaded, name = load(candidate), resolve(candidate)
    coming = iter(cases)
    under_way: deque[tuple[Case, Outcome]] = deque()
    while True:
        for case in islice(coming, AHEAD - len(under_way)):
            under_way.append((case, _begin(case, loaded, name, pool)))
        if not under_way:
            return
        case, outcome = under_way.popleft()
        comparison = _judge(case, candidate, outcome)
        if comparison.verdict is Verdict.DIVERGED:
            # What is under way must be in before the ranks can be asked again about this one.
            under_way = deque((later, _settled(o)) for later, o in under_way)
            comparison = _closer(comparison, name, pool)
        yield comparison


# A candidate's answer, once it is there; or the reason why it was never asked.
Outcome = Callable[[], Assembly | Fault | str]


def _begin(case: Case, loaded: Candidate, name: str, pool: RankPool) -> Outcome:
    reason = loaded.supports(case)
    if reason is not None:
        return lambda: reason
    pool.submit(case, name)
    return pool.collect


def _settled(outcome: Outcome) -> Outcome:
    answer = outcome()
    return lambda: answer


def _judge(case: Case, candidate: str, outcome: Outcome, *, traced: bool = False) -> Comparison:
    # The references are computed first, while the ranks work.
    oracle, baseline = references(case, traced=traced)
    answer = outcome()
    if isinstance(answer, str):
        return unsupported(case, candidate, answer)
    if isinstance(answer, Fault):
        return faulted(case, candidate, answer)
    return compare(case, candidate, oracle, baseline, answer)


def references(case: Case, *, traced: bool = False) -> tuple[Trace, Trace]:
    """The fp64 oracle, and plain training in the case's own dtype."""
    oracle = reference(case, torch.float64, traced=traced)
    if case.dtype == "fp64":
        return oracle, oracle
    return oracle, reference(case, TORCH_DTYPES[case.dtype], traced=traced)


def _closer(seen: Comparison, name: str, pool: RankPool) -> Comparison:
    """The same case again, fully traced, after making sure that the reference is not to blame."""
    case = seen.case
    doubt = agree(case, reference(case, torch.float64), rowwise(case))
    if doubt:
        summary = f"the padded reference and the row-wise oracle disagree: {doubt}"
        return faulted(case, seen.candidate, Fault(kind=Kind.REFERENCE, summary=summary))
    pool.submit(case, name, traced=True)
    traced = _judge(case, seen.candidate, pool.collect, traced=True)
    if traced.verdict is Verdict.DIVERGED:
        return traced
    return replace(seen, reason="seen once; the same case run again with full tracing was fine")
