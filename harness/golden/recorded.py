"""What a candidate computed on one device in a low precision, and whether it still does.

Bits of two devices, drivers or versions are not compared: each answer is as good as its distance
to plain training in fp64. So what is recorded tells a change of the environment, which leaves all
within their budgets, from a change of meaning, which does not. In the environment that it was
recorded in, a step whose runs agree in every bit must still give the bits that are stored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.against import PLAIN, Against
from harness.candidates import Named, locate
from harness.case import Dtype, parse
from harness.compare import Change, Comparison, Verdict, identical
from harness.golden.contents import Golden
from harness.golden.damage import BadGolden
from harness.golden.manifest import Listed
from harness.golden.own import AGAINST, CANDIDATE, against_of, candidate_of, is_own
from harness.golden.tensors import Stored
from harness.judge import Job, Session
from harness.judge.stages import ask_ranks, measure
from harness.trace import Assembly, Trace, is_required

# How often a step is run again before its bits are said to have changed.
MORE_RUNS = 3


def is_recorded(golden: Golden) -> bool:
    """Whether it holds what a candidate computed on a device, and no oracle."""
    return bool(candidate_of(golden)) and not is_own(golden)


def record(
    goldens: Mapping[str, Golden],
    candidate: Named,
    dtype: Dtype,
    made: Mapping[str, str],
    commit: str,
    session: Session,
    *,
    against: Against = PLAIN,
) -> tuple[dict[str, Golden], dict[str, str]]:
    """What the candidate computes here on every golden; and why it is asked for none of some."""
    recorded: dict[str, Golden] = {}
    left_out: dict[str, str] = {}
    for name, golden in goldens.items():
        case = replace(golden.vector.case, dtype=dtype)
        if case.ranks > session.pool.size:
            left_out[name] = f"needs {case.ranks} ranks"
            continue
        comparison, trace = _run(Job(case, candidate, against), session)
        why = _cannot_be_judged(comparison)
        if why:
            left_out[name] = why
            continue
        if not comparison.verdict.passed:
            raise BadGolden(f"{name}: {candidate.name} is {comparison.verdict.name} on {case}")
        told = {**made, CANDIDATE: candidate.name, AGAINST: against}
        stored = Stored(name, str(case), trace, told)
        recorded[name] = Golden(golden.vector, stored, Listed("", "", commit, reason=""))
    if not recorded:
        raise BadGolden(
            f"{candidate.name} can run none of the goldens on {session.pool.size} ranks"
        )
    return recorded, left_out


def _cannot_be_judged(comparison: Comparison) -> str:
    """The candidate refuses the case, or it says nothing in so short a format."""
    return comparison.reason if comparison.verdict is Verdict.UNSUPPORTED else ""


def compared(
    goldens: Mapping[str, Golden], made: Mapping[str, str], session: Session
) -> Iterator[tuple[str, Change, str, Comparison]]:
    """For each golden, what changed since it was recorded, and how that is known."""
    for name, golden in goldens.items():
        stored = golden.stored
        job = Job(parse(stored.case), locate(candidate_of(golden)), against_of(golden))
        elsewhere = [
            f"{field} {was} -> {made.get(field, 'none')}"
            for field, was in stored.made.items()
            if field not in (CANDIDATE, AGAINST) and made.get(field, "none") != was
        ]
        comparison, trace = _run(job, session)
        if not comparison.verdict.passed:
            yield name, Change.SEMANTIC, ", ".join(elsewhere), comparison
        elif elsewhere:
            yield name, Change.DRIFT, ", ".join(elsewhere), comparison
        elif why := identical(stored.trace, trace):
            yield name, *_run_again(job, session, trace, why), comparison
        else:
            yield name, Change.NONE, "", comparison


def _run_again(job: Job, session: Session, trace: Trace, why: str) -> tuple[Change, str]:
    """Whether a step has changed that gives other bits than are stored, or gives others each time.

    On some devices sums are made in any order; nobody is blamed for that.
    """
    for _ in range(MORE_RUNS):
        _, once_more = _run(job, session)
        unlike = identical(trace, once_more)
        if unlike:
            return Change.UNREPEATABLE, f"two runs here differ, so no bits are compared: {unlike}"
    return Change.CHANGED, (
        f"{why}; {1 + MORE_RUNS} runs here agree in every bit, and nothing that is recorded of "
        "their environment has changed"
    )


def _run(job: Job, session: Session) -> tuple[Comparison, Trace]:
    """How a run is judged, and what it came to."""
    run = ask_ranks(job, session.pool)
    outcome = run.outcome()
    trace = Trace()
    if isinstance(outcome, Assembly):
        for key in filter(is_required, outcome.trace):
            # Which rank held a row is not for keeping.
            trace.put(key, replace(outcome.trace[key], owners=None))
    return measure(run), trace
