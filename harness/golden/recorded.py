"""What a candidate computed on one device in a low precision, and whether it still does.

Bits of two devices, drivers or versions are not compared: each answer is as good as its distance
to plain training in fp64. So what is recorded tells a change of the environment, which leaves all
within their budgets, from a change of meaning, which does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.case import Case, Dtype, parse
from harness.compare import Change, Comparison, Verdict, identical
from harness.golden.contents import Golden
from harness.golden.damage import BadGolden
from harness.golden.manifest import Listed
from harness.golden.tensors import Stored
from harness.judge.judge import begin, judge
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Trace

CANDIDATE = "candidate"


def is_recorded(golden: Golden) -> bool:
    """Whether it holds what a candidate computed, and not the oracle."""
    return CANDIDATE in golden.stored.made


def record(
    goldens: Mapping[str, Golden],
    candidate: str,
    dtype: Dtype,
    made: Mapping[str, str],
    commit: str,
    pool: RankPool,
) -> tuple[dict[str, Golden], dict[str, str]]:
    """What the candidate computes here on every golden; and why it is asked for none of some."""
    recorded: dict[str, Golden] = {}
    left_out: dict[str, str] = {}
    for name, golden in goldens.items():
        case = replace(golden.vector.case, dtype=dtype)
        if case.ranks > pool.size:
            left_out[name] = f"needs {case.ranks} ranks"
            continue
        comparison, trace = _run(case, candidate, pool)
        why = _cannot_be_judged(comparison)
        if why:
            left_out[name] = why
            continue
        if not comparison.verdict.passed:
            raise BadGolden(f"{name}: {candidate} is {comparison.verdict.name} on {case}")
        stored = Stored(name, str(case), trace, {**made, CANDIDATE: candidate})
        recorded[name] = Golden(golden.vector, stored, Listed("", "", commit))
    if not recorded:
        raise BadGolden(f"{candidate} can run none of the goldens on {pool.size} ranks")
    return recorded, left_out


def _cannot_be_judged(comparison: Comparison) -> str:
    """The candidate refuses the case, or it says nothing in so short a format."""
    return comparison.reason if comparison.verdict is Verdict.UNSUPPORTED else ""


def compared(
    goldens: Mapping[str, Golden], made: Mapping[str, str], pool: RankPool
) -> Iterator[tuple[str, Change, str, Comparison]]:
    """For each golden, what changed since it was recorded, and how that is known."""
    for name, golden in goldens.items():
        stored = golden.stored
        case, candidate = parse(stored.case), stored.made[CANDIDATE]
        elsewhere = [
            f"{field} {was} -> {made.get(field, 'none')}"
            for field, was in stored.made.items()
            if field != CANDIDATE and made.get(field, "none") != was
        ]
        comparison, trace = _run(case, candidate, pool)
        if not comparison.verdict.passed:
            yield name, Change.SEMANTIC, ", ".join(elsewhere), comparison
        elif elsewhere:
            yield name, Change.DRIFT, ", ".join(elsewhere), comparison
        else:
            why = identical(stored.trace, trace)
            change = Change.DRIFT if why else Change.NONE
            yield name, change, why and f"nothing around it changed, and {why}", comparison


def _run(case: Case, candidate: str, pool: RankPool) -> tuple[Comparison, Trace]:
    """How a run is judged, and what it came to."""
    run = begin(case, candidate, pool)
    outcome = run.outcome()
    trace = Trace()
    if isinstance(outcome, Assembly):
        for key in outcome.trace:
            # Which rank held a row is not for keeping.
            trace.put(key, replace(outcome.trace[key], owners=None))
    return judge(run), trace
