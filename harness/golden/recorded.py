"""Recorded goldens: what a candidate computed on one device in a low precision.

1. Bits of two devices, drivers or versions are not compared. Each result is judged by its distance
   to plain training in fp64: within its budget, only the environment has changed.
2. In the environment that it was recorded in, a step must still give the stored bits, unless two
   of its runs differ there.
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
from harness.golden.own import against_of, candidate_of, is_own
from harness.golden.tensors import AGAINST, CANDIDATE, Stored
from harness.judge import Job, Session
from harness.judge.stages import ask_ranks, measure
from harness.trace import Assembly, Trace, is_required

# A step with other bits than stored is run again as often, before it counts as changed.
MORE_RUNS = 3


def is_recorded(golden: Golden) -> bool:
    """Return whether it holds what a candidate computed on a device, and no oracle."""
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
    """Run the candidate on every golden; return its goldens, and why some were left out, by name.

    Raise `BadGolden` if it fails on one, or can run none.
    """
    recorded: dict[str, Golden] = {}
    left_out: dict[str, str] = {}
    for name, golden in goldens.items():
        case = replace(golden.vector.case, dtype=dtype)
        if case.ranks > session.pool.size:
            left_out[name] = f"needs {case.ranks} ranks"
            continue
        comparison, trace = _run(Job(case, candidate, against), session)
        if comparison.verdict is Verdict.UNSUPPORTED and comparison.reason:
            # The candidate refuses the case, or rounding in this dtype hides everything.
            left_out[name] = comparison.reason
            continue
        if not comparison.verdict.passed:
            raise BadGolden(f"{name}: {candidate.name} is {comparison.verdict.name} on {case}")
        made_by = {**made, CANDIDATE: candidate.name, AGAINST: against}
        stored = Stored(name, str(case), trace, made_by)
        recorded[name] = Golden(golden.vector, stored, Listed("", "", commit, reason=""))
    if not recorded:
        raise BadGolden(
            f"{candidate.name} can run none of the goldens on {session.pool.size} ranks"
        )
    return recorded, left_out


def compare_recorded(
    goldens: Mapping[str, Golden], made: Mapping[str, str], session: Session
) -> Iterator[tuple[str, Change, str, Comparison]]:
    """Run the candidate on each golden again; yield its name, the change, why, and the comparison.

    The change is in the result, in the environment alone, or in the bits without either.
    """
    for name, golden in goldens.items():
        stored = golden.stored
        job = Job(parse(stored.case), locate(candidate_of(golden)), against_of(golden))
        differences = [
            f"{field} {was} -> {made.get(field, 'none')}"
            for field, was in stored.made.items()
            if field not in (CANDIDATE, AGAINST) and made.get(field, "none") != was
        ]
        comparison, trace = _run(job, session)
        if not comparison.verdict.passed:
            yield name, Change.SEMANTIC, ", ".join(differences), comparison
        elif differences:
            yield name, Change.DRIFT, ", ".join(differences), comparison
        elif why := identical(stored.trace, trace):
            yield name, *_run_again(job, session, trace, why), comparison
        else:
            yield name, Change.NONE, "", comparison


def _run_again(job: Job, session: Session, trace: Trace, why: str) -> tuple[Change, str]:
    """Run a step again that gives other bits than stored; return what that means, and why.

    On some devices sums are made in any order. So the step counts as changed only if its runs
    agree with each other.
    """
    for _ in range(MORE_RUNS):
        _, again = _run(job, session)
        unlike = identical(trace, again)
        if unlike:
            return Change.UNREPEATABLE, f"two runs here differ, so no bits are compared: {unlike}"
    return Change.CHANGED, (
        f"{why}; {1 + MORE_RUNS} runs here agree in every bit, and nothing that is recorded of "
        "their environment has changed"
    )


def _run(job: Job, session: Session) -> tuple[Comparison, Trace]:
    """Run a job; return its comparison, and a trace of the required keys, empty if it has none."""
    run = ask_ranks(job, session.pool)
    outcome = run.outcome()
    trace = Trace()
    if isinstance(outcome, Assembly):
        for key in filter(is_required, outcome.trace):
            # A golden is valid for every mesh, so it must not say which rank held a row.
            trace.put(key, replace(outcome.trace[key], owners=None))
    return measure(run), trace
