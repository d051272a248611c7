"""Decide whether small errors are rounding.

Rounding up or down is a matter of chance: after the weights move a little, the errors are
different. A formula that is a little wrong gives the same errors again, in the same direction.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from harness.case import Case
from harness.diagnosis.evidence import Evidence
from harness.trace.trace import Values

NUDGE = 2.0**-7
# Least cosine between the errors of a case and of its neighbour for a wrong formula. A wrong
# formula gave 0.995 or more; rounding gave 0.89 at the most, and much less on one case of three.
SAME_DIRECTION = 0.95
ENOUGH_CASES = 3


def is_rounding(wrong: Sequence[Evidence], ask: Callable[[Case], Evidence | None]) -> bool | None:
    """Decide for the cases that go wrong; None if no case allows a decision."""
    known = (_cosine_of_errors(evidence, ask) for evidence in wrong)
    cosines = list(islice((cosine for cosine in known if cosine is not None), ENOUGH_CASES))
    return min(cosines) < SAME_DIRECTION if cosines else None


def _cosine_of_errors(evidence: Evidence, ask: Callable[[Case], Evidence | None]) -> float | None:
    """Return the cosine between the errors with the case's weights and with moved ones."""
    moved = ask(replace(evidence.case, nudge=evidence.case.nudge + NUDGE))
    if moved is None:
        return None
    errors, moved_errors = _errors(evidence), _errors(moved)
    keys = [key for key in errors if key in moved_errors]
    if not keys:
        return None
    one, other = (
        np.concatenate([by_key[key] for key in keys]) for by_key in (errors, moved_errors)
    )
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / size if np.isfinite(size) and size else None


def _errors(evidence: Evidence) -> dict[str, Values]:
    """Return the errors of required keys but the loss, each over the tensor's largest element."""
    return {
        key: ((evidence.got[key].values - wide) / max(float(np.abs(wide).max()), 1e-300)).ravel()
        for key in evidence.of_required.wrong_keys
        if key != "loss"
        for wide in (evidence.oracle[key].values.astype(np.float64),)
        if wide.shape == evidence.got[key].values.shape
    }
