"""Own goldens: what a candidate's own reference computes in fp64.

They serve candidates with a model or a loss of their own. The reference is plain training of the
candidate's recipe or of one that the user named, or the candidate's step at sp 1. Such a golden
names its candidate and such a recipe, whose code runs only if the user names it as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.against import ITSELF, PLAIN, Against, is_reference, reference_name
from harness.candidates import locate
from harness.case import parse
from harness.compare import Change, drift
from harness.golden.contents import Golden
from harness.golden.manifest import Listed
from harness.golden.tensors import AGAINST, CANDIDATE, Stored
from harness.golden.vector import Vector
from harness.judge import Job, Session
from harness.judge.stages import own_reference
from harness.trace import Fault, Trace, is_required


def candidate_of(golden: Golden) -> str:
    """Return the candidate whose numbers a golden holds; empty if they are plain training's."""
    return golden.stored.made.get(CANDIDATE, "")


def against_of(golden: Golden) -> Against:
    """Return what that candidate is compared with."""
    stated = golden.stored.made.get(AGAINST, PLAIN)
    return stated if is_reference(stated) else PLAIN


def is_own(golden: Golden) -> bool:
    """Return whether it is an own golden: fp64 numbers of a candidate's own reference."""
    is_exact = parse(golden.stored.case).dtype == "fp64"
    return bool(candidate_of(golden)) and against_of(golden) != PLAIN and is_exact


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
    against: Against,
    made: Mapping[str, str],
    commit: str,
    reason: str = "",
) -> Golden:
    """Make an own golden from the trace of a candidate's own reference."""
    made = {**made, CANDIDATE: candidate, AGAINST: against}
    stored = Stored(vector.name, str(vector.case), trace, made)
    return Golden(vector, stored, Listed("", "", commit, reason))


def find_unconfirmed(goldens: Mapping[str, Golden], session: Session) -> Iterator[tuple[str, str]]:
    """Yield the name of each golden that its candidate's reference does not confirm, and why.

    A reference that gives no numbers does not confirm it either.
    """
    for name, golden in goldens.items():
        against, candidate = against_of(golden), candidate_of(golden)
        now = own_reference(Job(golden.vector.case, locate(candidate), against), session.pool)
        is_itself = against == ITSELF
        where = "at sp 1" if is_itself else f"in {reference_name(golden.vector.case, against)}"
        if isinstance(now, Trace):
            stored = golden.stored.trace
            # Goldens of before have no metrics.
            moved = drift(stored, now.only([k for k in now if is_required(k) or k in stored]))
            if moved.change is Change.SEMANTIC:
                yield name, f"{candidate} differs {where}: {moved}"
        else:
            why = now.summary if isinstance(now, Fault) else now.reason
            yield name, f"{candidate} gives no numbers {where}: {why}"
