"""Whether small errors are rounding.

What is rounded falls to one side or the other, by chance: move the weights a little, and errors
are others. A formula that is a little wrong is as wrong beside them, in the same direction.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from harness.case import Case
from harness.diagnosis.evidence import Evidence
from harness.trace.trace import Values

NUDGE = 2.0**-7
# Cosine between errors here and on a neighbouring case. A wrong formula gave 0.995 or more;
# rounding gave 0.89 at the most, and much less on one case of three.
SMOOTH = 0.95
ENOUGH = 3


def is_rounding(wrong: Sequence[Evidence], ask: Callable[[Case], Evidence | None]) -> bool | None:
    """Decide for the cases that go wrong; None if they cannot say."""
    known = (_in_common(evidence, ask) for evidence in wrong)
    shares = list(islice((share for share in known if share is not None), ENOUGH))
    return min(shares) < SMOOTH if shares else None


def _in_common(evidence: Evidence, ask: Callable[[Case], Evidence | None]) -> float | None:
    """The cosine between errors here and beside."""
    moved = ask(replace(evidence.case, nudge=evidence.case.nudge + NUDGE))
    if moved is None:
        return None
    here, beside = _errors(evidence), _errors(moved)
    keys = [key for key in here if key in beside]
    if not keys:
        return None
    one, other = (np.concatenate([errors[key] for key in keys]) for errors in (here, beside))
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / size if np.isfinite(size) and size else None


def _errors(evidence: Evidence) -> dict[str, Values]:
    """Errors of what every candidate shows but the loss, each over the largest element."""
    return {
        key: ((evidence.got[key].values - wide) / max(float(np.abs(wide).max()), 1e-300)).ravel()
        for key in evidence.of_required.wrong
        if key != "loss"
        for wide in (evidence.oracle[key].values.astype(np.float64),)
        if wide.shape == evidence.got[key].values.shape
    }
