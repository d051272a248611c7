"""What a candidate says before it runs: code of its own, and so it is asked on ranks only."""

from torch.distributed import get_world_size

from harness.against import asking
from harness.candidates import Candidate, locate
from harness.candidates.beside import put_first, require_own
from harness.candidates.registry import UnknownCandidate
from harness.case import Case
from harness.case.stated import BadField, outside, require_readable
from harness.importing import without_a_search_for_garbage
from harness.watch.recorder import RECEIVED, Recorder

# Where a rank is while it asks; a run that ends here has shown nothing of a step.
ASKING = "supports()"
# What a candidate's limits say of these does not hold for the oracle.
OF_WHAT_IS_JUDGED = ("dtype", "mixed")


def willing(
    name: str, folder: str, case: Case, recorder: Recorder, oracle: bool
) -> tuple[Candidate | None, str, str]:
    """The candidate, if it runs this case; or nothing, why not, and all limits if it is that."""
    recorder.reached(ASKING)
    candidate = _load(name, folder)
    limits = getattr(candidate, "limits", "")
    beyond = outside(case, limits, get_world_size(), OF_WHAT_IS_JUDGED if oracle else ())
    with asking(oracle=oracle):
        reason = f"its limits are {beyond}" if beyond else candidate.supports(case)
    recorder.reached(RECEIVED)
    if reason is None:
        return candidate, "", ""
    if not isinstance(reason, str) or not reason:
        raise TypeError(f"supports() returned {reason!r}; return None, or say in words why not")
    return None, reason, limits if beyond else ""


def loaded(
    name: str, folder: str, _case: Case, _recorder: Recorder, _oracle: bool
) -> tuple[None, str, str]:
    """Nothing that runs; what is wrong with the code of the candidate, or else its limits."""
    try:
        limits = getattr(_load(name, folder), "limits", "")
        require_readable(limits)
    except UnknownCandidate as error:
        return None, str(error), ""
    except BadField as error:
        return None, f"candidate={name}: {error}", ""
    return None, "", limits


def _load(name: str, folder: str) -> Candidate:
    put_first(folder)
    try:
        with without_a_search_for_garbage():
            return locate(name).load()
    finally:
        # Where it does not load, that may be why.
        require_own(folder)
