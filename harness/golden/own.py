"""Goldens of a candidate's own step: what it computes at sp 1 in fp64.

A model or a loss of its own has no plain training here. Such a golden says whose it is, and what
it is compared with; code that it names runs only if somebody asks for it by name.
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

# Fields of what is known of how tensors were made.
CANDIDATE, AGAINST = "candidate", "against"


def candidate_of(golden: Golden) -> str:
    """Whose numbers it holds; nobody's where they are plain training's."""
    return golden.stored.made.get(CANDIDATE, "")


def against_of(golden: Golden) -> Against:
    """What that candidate was compared with, or is."""
    return ITSELF if golden.stored.made.get(AGAINST) == ITSELF else PLAIN


def is_own(golden: Golden) -> bool:
    """Whether it holds the oracle of a candidate, and not what one computed in a low precision."""
    exact = parse(golden.stored.case).dtype == "fp64"
    return bool(candidate_of(golden)) and against_of(golden) == ITSELF and exact


def adopted(goldens: Mapping[str, Golden], candidate: str) -> dict[str, Golden]:
    """Name another candidate whose step the numbers are held against."""
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
    """A golden of what a candidate's own step was seen to compute."""
    told = {**made, CANDIDATE: candidate, AGAINST: ITSELF}
    stored = Stored(vector.name, str(vector.case), trace, told)
    return Golden(vector, stored, Listed("", "", commit, reason))


def unconfirmed(goldens: Mapping[str, Golden], session: Session) -> Iterator[tuple[str, str]]:
    """Which goldens their candidate's step at sp 1 does not confirm, and how it differs.

    A step that gives no numbers there is not what the golden was made of.
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
