"""Gradients that are wrong although all that they were computed from is right."""

from collections.abc import Sequence

import numpy as np

from harness.against import ITSELF
from harness.compare import Look
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.weights import name_factor
from harness.trace import GRADIENT, MisfitKind
from harness.trace.trace import Values

# Rounding to a shorter format moves a value by less than this share of the tensor.
COARSE = 2.0**-6


def name_gradients(evidence: Evidence) -> Look:
    """What the gradients have in common, whose forward pass is right."""
    split = sorted({f.key for f in evidence.comparison.misfits if f.kind is MisfitKind.SPLIT})
    if split:
        return Look("replica-split", f"ranks hold different copies of {_some(split)}")
    scale = evidence.comparison.scale
    if evidence.comparison.against == ITSELF and not evidence.mask_n.any():
        # A loss of nothing has no gradient, so that its scale is not what is wrong.
        return Look("gradient-partial", "no token is a target: a term beside the loss is wrong")
    if scale is not None and scale.factor:
        return Look(name_factor(evidence, scale.factor).name, str(scale))
    return _name_unequal(evidence)


def _name_unequal(evidence: Evidence) -> Look:
    """Gradients that all ranks agree on, and that no common factor explains."""
    wrong = [key for key in evidence.wrong if key.startswith(GRADIENT)]
    all_keys = [key for key in evidence.oracle if key.startswith(GRADIENT)]
    said = f"{len(wrong)} of {len(all_keys)} gradients are wrong"
    pairs = [(evidence.oracle[key].values, evidence.got[key].values) for key in wrong]
    if not all(np.isfinite(got).all() for _, got in pairs):
        return Look("non-finite", f"first in {wrong[0]}")
    # In the order of backward: what passes through the first one is wrong after it.
    if not pairs[0][1].any():
        return Look("gradient-missing", f"{said}: {_some(wrong[:1])} is zero")
    if all(is_coarse(expected, got) for expected, got in pairs):
        return Look("low-precision", f"{said}, by less than {COARSE:.2g} of each")
    if not evidence.case.tied and _only_padding(evidence):
        return Look("pad-leak", f"{said}: of the embedding only the row of the pad id")
    how = "" if len(wrong) == len(all_keys) else f": {_some(wrong)}"
    factor = _factor_of(evidence, pairs)
    by = f"each {factor:g} of the reference" if factor else "by no common factor"
    return Look("gradient-partial", f"{said}, {by}{how}")


def _factor_of(evidence: Evidence, pairs: Sequence[tuple[Values, Values]]) -> float:
    """What all wrong gradients are times the expected; zero where they are that by no factor."""
    sides = zip(*pairs, strict=True)
    expected, got = (
        np.concatenate([x.ravel().astype(np.float64) for x in side]) for side in sides
    )
    factor = float(got @ expected / max(expected @ expected, 1e-300))
    return factor if evidence.alike(factor * expected, got).all() else 0.0


def name_uncut(evidence: Evidence) -> Look | None:
    """Every rank uses the per-head parameters of the first rank's heads."""
    case = evidence.case
    for key in evidence.wrong:
        expected, got = evidence.oracle[key].values, evidence.got[key].values
        is_of_heads = key.startswith(GRADIENT) and expected.shape[:1] in (
            (case.heads,),
            (case.kv_heads,),
        )
        if case.sp == 1 or not is_of_heads or len(got) % case.sp:
            continue
        first = len(got) // case.sp
        if got[:first].any() and not got[first:].any() and expected[first:].any():
            name = key.removeprefix(GRADIENT)
            why = f"of the {len(got)} heads' own {name} the first {first} learn, and no other"
            return Look("heads-uncut", why)
    return None


def is_coarse(expected: Values, got: Values) -> bool:
    """Whether every element is off by little, as after rounding to a shorter format."""
    wide = expected.astype(np.float64)
    largest = np.abs(wide).max(initial=0.0)
    return bool((np.abs(got - wide) <= COARSE * largest).all())


def _only_padding(evidence: Evidence) -> bool:
    if f"{GRADIENT}embed" not in evidence.oracle:
        return False
    expected, got = (trace[f"{GRADIENT}embed"].values for trace in (evidence.oracle, evidence.got))
    other = np.arange(len(expected)) != evidence.case.pad_id
    return bool(
        evidence.alike(expected[other], got[other]).all()
        and not evidence.alike(expected, got).all()
    )


def _some(keys: list[str]) -> str:
    names = [key.removeprefix(GRADIENT) for key in keys]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
