"""Own goldens: what a candidate's own step computes at sp 1 in fp64.

They serve candidates with a model or a loss of their own, for which the harness has no plain
training. Such a golden names its candidate, whose code runs only if the user names it as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.against import ITSELF, PLAIN, Against
from harness.candidates import locate
from harness.case import parse
from harness.compare import Change, drift
from harness.golden.contents import Golden
from harness.golden.manifest import Listed
from harness.golden.tensors import Stored
from harness.golden.vector import Vector
from harness.judge import Job, Session
from harness.judge.stages import reference_at_sp_1
from harness.trace import Fault, Trace

# Fields of `Stored.made` that goldens of plain training do not have.
CANDIDATE, AGAINST = "candidate", "against"


def candidate_of(golden: Golden) -> str:
    """Return the candidate whose numbers a golden holds; empty if they are plain training's."""
    return golden.stored.made.get(CANDIDATE, "")


def against_of(golden: Golden) -> Against:
    """Return what that candidate is compared with."""
    return ITSELF if golden.stored.made.get(AGAINST) == ITSELF else PLAIN


def is_own(golden: Golden) -> bool:
    """Return whether it is an own golden: fp64 numbers of a step that is compared with itself."""
    is_exact = parse(golden.stored.case).dtype == "fp64"
    return bool(candidate_of(golden)) and against_of(golden) == ITSELF and is_exact


def with_candidate(goldens: Mapping[str, Golden], candidate: str) -> dict[str, Golden]:
    """Return the goldens as goldens of another candidate, with their numbers unchanged."""
    return {
        name: replace(
            golden,
            stored=replace(golden.stored, made={**golden.stored.made, CANDIDATE: candidate}),
        )
        for name, golden in goldens.items()
    }


def make(
    vector: Vector,
    trace: Trace,
    candidate: str,
    made: Mapping[str, str],
    commit: str,
    reason: str = "",
) -> Golden:
    """Make an own golden from the trace of a candidate's step at sp 1."""
    made = {**made, CANDIDATE: candidate, AGAINST: ITSELF}
    stored = Stored(vector.name, str(vector.case), trace, made)
    return Golden(vector, stored, Listed("", "", commit, reason))


def find_unconfirmed(goldens: Mapping[str, Golden], session: Session) -> Iterator[tuple[str, str]]:
    """Yield the name of each golden that its candidate's step at sp 1 does not confirm, and why.

    A step that gives no numbers at sp 1 does not confirm it either.
    """
    for name, golden in goldens.items():
        job = Job(golden.vector.case, locate(candidate_of(golden)))
        now = reference_at_sp_1(job, session.pool)
        if isinstance(now, Trace):
            moved = drift(golden.stored.trace, now)
            if moved.change is Change.SEMANTIC:
                yield name, f"{candidate_of(golden)} differs at sp 1: {moved}"
        else:
            why = now.summary if isinstance(now, Fault) else now.reason
            yield name, f"{candidate_of(golden)} gives no numbers at sp 1: {why}"
