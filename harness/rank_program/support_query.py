"""Load a candidate and ask what it supports: both run its code, and so only ranks do it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import get_world_size

from harness.against import asking, names_recipe
from harness.candidates import Candidate, locate
from harness.candidates.beside import put_first, require_own
from harness.candidates.protocol import PlainTraining
from harness.candidates.registry import UnknownCandidate, locate_recipe
from harness.case import Case
from harness.case.stated import (
    InvalidField,
    require_valid_limits,
    undeclared_setting,
    violated_limit,
)
from harness.importing import without_a_search_for_garbage
from harness.watch.recorder import RECEIVED, Recorder
from harness.wire.messages import Run

# The progress of a rank during the question; a run that fails here shows nothing of the step.
ASKING = "supports()"
# Fields for which the limits of a candidate do not bind its oracle, which runs in fp64.
OF_WHAT_IS_JUDGED = ("dtype", "mixed")


def load(request: Run, case: Case, recorder: Recorder) -> tuple[Candidate | None, str, str]:
    """Return the candidate if its step is to run the case; or None, a refusal, and its limits.

    Limits are returned only if they exclude the case, or if the candidate was only to be loaded.
    """
    if request.is_load_only:
        return None, *_try_to_load(request)
    recorder.note_progress(ASKING)
    candidate = _load(request)
    limits = getattr(candidate, "limits", "")
    ignored = OF_WHAT_IS_JUDGED if request.oracle else ()
    limit = violated_limit(case, limits, get_world_size(), ignored)
    setting = undeclared_setting(case, limits)
    refusal = f"its limits are {limit}" if limit else f"it has no {setting}" if setting else ""
    with asking(oracle=request.oracle):
        reason = refusal or candidate.supports(case)
    recorder.note_progress(RECEIVED)
    if reason is None:
        return candidate, "", ""
    if not isinstance(reason, str) or not reason:
        raise TypeError(f"supports() returned {reason!r}; return None, or say in words why not")
    return None, reason, limits if limit else ""


def load_recipe(request: Run) -> PlainTraining:
    """Return the recipe, or the step with one, whose plain training is to run."""
    name = request.candidate
    with _importing(request.folder):
        return (locate_recipe(name) if names_recipe(name) else locate(name)).load_recipe()


def _try_to_load(request: Run) -> tuple[str, str]:
    """Return what is wrong with the code of the candidate or recipe, or else its limits."""
    try:
        if request.plain:
            load_recipe(request)
            return "", ""
        limits = getattr(_load(request), "limits", "")
        require_valid_limits(limits)
    except UnknownCandidate as error:
        return str(error), ""
    except InvalidField as error:
        return f"candidate={request.candidate}: {error}", ""
    return "", limits


def hypotheses(request: Run) -> list[str]:
    """Return what its recipe says can be wrong with the candidate, which must be loaded.

    A candidate without a recipe has none.
    """
    if request.plain:
        return list(load_recipe(request).hypotheses)
    return list(getattr(locate(request.candidate).load(), "hypotheses", ()))


def _load(request: Run) -> Candidate:
    with _importing(request.folder):
        return locate(request.candidate).load()


@contextmanager
def _importing(folder: str) -> Iterator[None]:
    put_first(folder)
    try:
        with without_a_search_for_garbage():
            yield
    finally:
        # A module from another folder may be the reason why it does not load.
        require_own(folder)
