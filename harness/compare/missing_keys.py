"""What a candidate did not emit: what it had to, and what nobody asks of it."""

from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from harness.trace import GRADIENT, Fault, Kind, Misfit, MisfitKind, Trace, is_required


def malformed(key: str, what: str) -> Fault:
    """A key that cannot be compared as it is."""
    return Fault(kind=Kind.FRAGMENT, summary=f"key {key!r} {what}", last_key=key)


def absent(oracle: Trace, trace: Trace, *, of_our_model: bool) -> Fault | None:
    """What the candidate had to emit and did not."""
    key = next((key for key in oracle if is_required(key) and key not in trace), None)
    if key is None:
        return None
    unknown = [each for each in trace if each not in oracle]
    if of_our_model and key.startswith(GRADIENT) and _is_of_another_model(oracle, trace):
        return _of_another_model(unknown, key)
    near = "".join(
        f"; near: {each!r}, which nobody knows" for each in get_close_matches(key, unknown, 1)
    )
    return malformed(key, f"was never emitted{near}")


def _is_of_another_model(oracle: Trace, trace: Trace) -> bool:
    gradients = [key for key in trace if key.startswith(GRADIENT)]
    known = sum(key in oracle for key in gradients)
    return 2 * known < len(gradients)


def _of_another_model(unknown: Sequence[str], key: str) -> Fault:
    other = next(each for each in unknown if each.startswith(GRADIENT))
    return Fault(
        kind=Kind.REFERENCE,
        summary=(
            f"the step emitted {other}, and plain training of the harness's own model has {key}: "
            "these are gradients of another model; add --against self, and the step is compared "
            "with itself at sp 1"
        ),
    )


def is_of_nobody(misfit: Misfit, reference: Trace) -> bool:
    """Whether tokens are lost that the reference of an optional key lacks as well."""
    if misfit.kind is not MisfitKind.LOST or is_required(misfit.key):
        return False
    known = reference.get(misfit.key)
    return known is None or known.tokens is None or not np.isin(misfit.tokens, known.tokens).any()
