"""Name gradients that are wrong although everything that they were computed from is right."""

from collections.abc import Sequence

import numpy as np

from harness.against import ITSELF
from harness.compare import Look
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.weights import name_factor
from harness.trace import GRADIENT, MisfitKind
from harness.trace.trace import Values

SPLIT = MisfitKind.SPLIT
# Rounding to a shorter format moves a value by less than this share of the tensor's largest.
SMALL_ERROR = 2.0**-6


def name_gradients(evidence: Evidence) -> Look:
    """Name what the wrong gradients have in common; the forward pass is right."""
    split = sorted({f.key for f in evidence.comparison.measured.misfits if f.kind is SPLIT})
    if split:
        return Look("replica-split", f"ranks hold different copies of {_first_names(split)}")
    wrong = [result for result in evidence.comparison.measured.keys if result.wrong]
    if wrong and all(result.frozen for result in wrong):
        names = _first_names([result.key for result in wrong])
        return Look("frozen-trained", f"in plain training these have no gradient: {names}")
    scale = evidence.comparison.measured.scale
    if evidence.comparison.against == ITSELF and not evidence.mask_n.any():
        # Without targets the loss has no gradient, so its scale cannot be what is wrong.
        return Look("gradient-partial", "no token is a target: a term beside the loss is wrong")
    if scale is not None and scale.factor:
        return Look(name_factor(evidence, scale.factor).name, str(scale))
    return _name_unequal(evidence)


def _name_unequal(evidence: Evidence) -> Look:
    """Name gradients that all ranks agree on and that no common factor explains."""
    wrong = [key for key in evidence.wrong_keys if key.startswith(GRADIENT)]
    all_keys = [key for key in evidence.oracle if key.startswith(GRADIENT)]
    summary = f"{len(wrong)} of {len(all_keys)} gradients are wrong"
    pairs = [(evidence.oracle[key].values, evidence.got[key].values) for key in wrong]
    if not all(np.isfinite(got).all() for _, got in pairs):
        return Look("non-finite", f"first in {wrong[0]}")
    if not any(evidence.got[key].values.any() for key in all_keys):
        why = "all are zero, as if backward was never called, or on another model"
        return Look("gradient-missing", f"{summary}: {why}")
    # Keys are in the order of backward: everything that passes through the first is wrong too.
    if not pairs[0][1].any():
        return Look("gradient-missing", f"{summary}: {_first_names(wrong[:1])} is zero")
    if all(has_small_errors(expected, got) for expected, got in pairs):
        return Look("low-precision", f"{summary}, by less than {SMALL_ERROR:.2g} of each")
    if not evidence.case.tied and _only_pad_row_is_wrong(evidence):
        return Look("pad-leak", f"{summary}: of the embedding only the row of the pad id")
    names = "" if len(wrong) == len(all_keys) else f": {_first_names(wrong)}"
    factor = _common_factor(evidence, pairs)
    by = f"each {factor:g} of the reference" if factor else "by no common factor"
    return Look("gradient-partial", f"{summary}, {by}{names}")


def _common_factor(evidence: Evidence, pairs: Sequence[tuple[Values, Values]]) -> float:
    """Return the factor between the expected and the actual gradients; zero if there is none."""
    sides = zip(*pairs, strict=True)
    expected, got = (
        np.concatenate([x.ravel().astype(np.float64) for x in side]) for side in sides
    )
    factor = float(got @ expected / max(expected @ expected, 1e-300))
    return factor if evidence.alike(factor * expected, got).all() else 0.0


def name_uncut_heads(evidence: Evidence) -> Look | None:
    """Name per-head parameters of which every rank uses those of the first rank's heads.

    If ranks hold different copies, each may have those of its own heads, and the sum is missing.
    """
    case = evidence.case
    split = {misfit.key for misfit in evidence.comparison.measured.misfits if misfit.kind is SPLIT}
    for key in evidence.wrong_keys:
        expected, got = evidence.oracle[key].values, evidence.got[key].values
        is_of_heads = key.startswith(GRADIENT) and expected.shape[:1] in (
            (case.heads,),
            (case.kv_heads,),
        )
        if case.sp == 1 or not is_of_heads or len(got) % case.sp or key in split:
            continue
        first = len(got) // case.sp
        if got[:first].any() and not got[first:].any() and expected[first:].any():
            name = key.removeprefix(GRADIENT)
            why = f"of the {len(got)} heads' own {name} the first {first} learn, and no other"
            return Look("heads-uncut", why)
    return None


def has_small_errors(expected: Values, got: Values) -> bool:
    """Return whether every element is off by little, as after rounding to a shorter format."""
    wide = expected.astype(np.float64)
    largest = np.abs(wide).max(initial=0.0)
    return bool((np.abs(got - wide) <= SMALL_ERROR * largest).all())


def _only_pad_row_is_wrong(evidence: Evidence) -> bool:
    if f"{GRADIENT}embed" not in evidence.oracle:
        return False
    expected, got = (trace[f"{GRADIENT}embed"].values for trace in (evidence.oracle, evidence.got))
    other = np.arange(len(expected)) != evidence.case.pad_id
    return bool(
        evidence.alike(expected[other], got[other]).all()
        and not evidence.alike(expected, got).all()
    )


def _first_names(keys: list[str]) -> str:
    names = [key.removeprefix(GRADIENT) for key in keys]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
