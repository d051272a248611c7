"""Compares a candidate's trace with the oracle's, key by key in execution order."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.case import Case
from harness.compare.budget import SLACK_THAT_SEES_HALF
from harness.compare.comparison import Comparison, Inquiry
from harness.compare.differing import Kept
from harness.compare.elementwise import (
    Judged,
    Noise,
    is_zero,
    judge,
    measure_lean,
    measure_noise,
)
from harness.compare.measurement import Divergence, KeyResult, Measurement
from harness.compare.missing_keys import is_lost_in_both, key_fault, missing_key_fault
from harness.compare.picture import JudgedTensor, draw_picture
from harness.compare.scale import fit_scale
from harness.compare.vacuity import count_edge_targets, hidden_by_rounding, vacuity
from harness.trace import (
    FROZEN,
    GRADIENT,
    Assembly,
    Entry,
    Fault,
    Kind,
    Trace,
    is_of_plain_training,
    is_required,
)
from harness.trace.trace import Tokens, Values
from harness.verdict import Verdict

Rows = EllipsisType | npt.NDArray[np.int64] | npt.NDArray[np.intp]


def compare(
    case: Case,
    candidate: str,
    oracle: Trace,
    baselines: Sequence[Trace],
    assembly: Assembly,
    *,
    of_our_model: bool = True,
    reference: str = "plain training",
) -> Comparison:
    """Return the comparison: EQUAL, WITHIN or DIVERGED if the run proves something.

    The verdict is FAULT if a required key is missing or the run is vacuous, and UNSUPPORTED if
    rounding in the case's dtype hides too many tensors.

    EQUAL means equal to the first baseline. All baselines show how large plain training's own
    error is. `of_our_model` says that the oracle is the harness's plain training, and not the
    candidate's own step.
    """
    trace = assembly.trace
    results: list[KeyResult] = []
    gradients: dict[str, tuple[Values, Values]] = {}
    first: Divergence | None = None
    kept, tensors = Kept(), list[JudgedTensor]()
    bitwise = True
    missing = missing_key_fault(oracle, trace, of_our_model=of_our_model)
    if missing:
        return fault_comparison(case, candidate, missing)
    noise = measure_noise(
        {
            key: (oracle[key].values, [b[key].values for b in baselines if key in b])
            for key in oracle
            if key in trace
        },
        case.dtype,
    )
    for key in oracle:
        got = trace.get(key)
        if got is None:
            continue
        rows, got_rows = _rows_in_common(oracle[key], got)
        expected, values = oracle[key].values[rows], got.values[got_rows]
        if expected.shape != values.shape or expected.dtype.kind != values.dtype.kind:
            problem = (
                f"has shape {values.shape} of {values.dtype}, expected {expected.shape} "
                f"of {expected.dtype}"
            )
            return fault_comparison(case, candidate, key_fault(key, problem))
        plain = [b[key].values[rows] for b in baselines if key in b]
        judged = judge(key, case.dtype, expected, plain, values, noise)
        result = _key_result(key, judged, expected, plain[0], values, noise)
        is_frozen = f"{FROZEN}{key.removeprefix(GRADIENT)}" in oracle
        results.append(replace(result, frozen=is_frozen))
        bitwise = bitwise and judged.bitwise
        if key.startswith(GRADIENT):
            gradients[key] = expected, values
        if judged.wrong.size and first is None:
            first = _locate(case, key, expected, values, judged, got, got_rows, trace.losses)
        tokens = _tokens_of_rows(oracle[key], rows)
        kept.add(key, expected, values, judged.wrong, tokens)
        tensors.append(JudgedTensor(key, expected, values, judged, tokens))
    gradients_differ = any(r.wrong for r in results if r.key.startswith(GRADIENT))
    vacuous = vacuity(case, results, oracle, assembly, of_our_model=of_our_model)
    fault = _run_fault(vacuous, assembly.out_of_step)
    misfits = tuple(misfit for misfit in assembly.misfits if not is_lost_in_both(misfit, oracle))
    differs = first is not None or bool(misfits)
    # A tensor that differs is wrong, no matter how many others rounding hides.
    hidden = () if differs or fault else hidden_by_rounding(results)
    verdict = _verdict(fault, hidden, differs=differs, bitwise=bitwise)
    not_judgeable = (
        f"not judgeable in {case.dtype}: the rounding of {reference} hides {', '.join(hidden[:1])}"
    )
    measured = Measurement(
        first=first,
        misfits=misfits,
        keys=tuple(results),
        scale=fit_scale(case, gradients) if gradients_differ else None,
        uncompared=_uncompared(oracle, assembly, of_our_model=of_our_model),
        at_edge=count_edge_targets(case, oracle.get("nll"), trace.losses),
        silent=case.sp > 1 and assembly.silent,
        stood_in=assembly.stood_in,
        loss=(float(oracle["loss"].values), float(trace["loss"].values)),
        differing=tuple(kept.tensors),
    )
    has_diverged = verdict is Verdict.DIVERGED
    picture = draw_picture(case, oracle, assembly, tensors) if has_diverged else None
    return Comparison(
        case=case,
        candidate=candidate,
        verdict=verdict,
        reason=fault.summary if fault else not_judgeable if hidden else "",
        swallowed=hidden,
        fault=fault if verdict is Verdict.FAULT else None,
        measured=measured,
        inquiry=Inquiry(picture=picture),
    )


def _key_result(
    key: str, judged: Judged, expected: Values, plain: Values, values: Values, noise: Noise
) -> KeyResult:
    wrong = int(judged.wrong.size)
    has_lean = is_required(key) and not wrong and 0 < judged.slack <= SLACK_THAT_SEES_HALF
    return KeyResult(
        key,
        judged.elements,
        wrong,
        judged.used,
        judged.slack,
        zero=is_zero(key, expected, noise),
        lean=measure_lean(expected, plain, values) if has_lean else None,
    )


def _uncompared(oracle: Trace, assembly: Assembly, *, of_our_model: bool) -> tuple[str, ...]:
    """Return the keys that were emitted and not compared.

    Optional keys of plain training do not count. They are compared only in a traced run, and an
    error in them shows in losses or gradients anyway.
    """
    emitted = dict.fromkeys([*assembly.trace, *assembly.skipped])
    return tuple(
        key
        for key in emitted
        if key not in oracle and not (of_our_model and is_of_plain_training(key))
    )


def _verdict(
    fault: Fault | None, hidden: tuple[str, ...], *, differs: bool, bitwise: bool
) -> Verdict:
    if differs:
        return Verdict.DIVERGED
    if fault:
        return Verdict.FAULT
    if hidden:
        return Verdict.UNSUPPORTED
    return Verdict.EQUAL if bitwise else Verdict.WITHIN


def _run_fault(vacuous: str, out_of_step: str) -> Fault | None:
    """Return the fault of a run that must not pass even if every element is right, or None."""
    if vacuous:
        return Fault(kind=Kind.VACUOUS, summary=vacuous)
    if out_of_step:
        return Fault(kind=Kind.OUT_OF_STEP, summary=f"no rank hung, and yet {out_of_step}")
    return None


def fault_comparison(case: Case, candidate: str, fault: Fault) -> Comparison:
    """Return the comparison of a case that ended in a fault."""
    return Comparison(case=case, candidate=candidate, verdict=Verdict.FAULT, fault=fault)


def unsupported_comparison(
    case: Case, candidate: str, reason: str, limits: str = ""
) -> Comparison:
    """Return the comparison of a case that was refused, or that cannot be judged."""
    return Comparison(
        case=case, candidate=candidate, verdict=Verdict.UNSUPPORTED, reason=reason, limits=limits
    )


def _rows_in_common(expected: Entry, got: Entry) -> tuple[Rows, Rows]:
    """Return the rows of both entries that belong to the same tokens; all rows of a replica."""
    if expected.tokens is None or got.tokens is None:
        return ..., ...
    at = np.searchsorted(got.tokens, expected.tokens)
    if (at < len(got.tokens)).all() and np.array_equal(got.tokens[at], expected.tokens):
        return ..., at
    _, expected_rows, got_rows = np.intersect1d(
        expected.tokens, got.tokens, assume_unique=True, return_indices=True
    )
    return expected_rows, got_rows


def _tokens_of_rows(expected: Entry, rows: Rows) -> Tokens | None:
    return None if expected.tokens is None else expected.tokens[rows]


def _locate(
    case: Case,
    key: str,
    expected: Values,
    values: Values,
    judged: Judged,
    got: Entry,
    got_rows: Rows,
    nll: Entry,
) -> Divergence:
    """Return the first wrong element, in token order and then along the tensor's own dims."""
    index = tuple(int(i) for i in np.unravel_index(int(judged.wrong[0]), expected.shape))
    element = Divergence(
        key=key,
        index=index,
        expected=float(expected[index]),
        got=float(values[index]),
        error=float(judged.error[index]),
        allowed=float(np.broadcast_to(judged.allowed, expected.shape)[index]),
    )
    if got.tokens is None or got.owners is None:
        return element
    token, owner = (int(x[got_rows][index[0]]) for x in (got.tokens, got.owners))
    row = bisect_right(case.offsets, token) - 1
    return replace(
        element,
        index=(token, *index[1:]),
        row=row,
        position=token - case.offsets[row],
        owner=owner,
        edge=_shard_edge(case, nll, token, row),
    )


def _shard_edge(case: Case, nll: Entry, token: int, row: int) -> Literal["", "first", "last"]:
    """Return whether a token is the first or last of its row on its rank, next to another's."""
    if nll.owners is None or nll.tokens is None or len(nll.tokens) < case.tokens:
        return ""
    owner = nll.owners[token]
    if token + 1 < case.offsets[row + 1] and nll.owners[token + 1] != owner:
        return "last"
    if token > case.offsets[row] and nll.owners[token - 1] != owner:
        return "first"
    return ""
