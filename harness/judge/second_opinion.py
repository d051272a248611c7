"""Before anybody is blamed, plain training is asked again: how far does it stray itself?"""

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import copysign

import torch

from harness.case import Case, Kernel
from harness.compare import (
    A_ROUNDING_AWAY,
    STRAIN,
    Comparison,
    Verdict,
    compare,
    doubt,
    faulted,
    strain,
)
from harness.ranks import precision
from harness.reference import TORCH_DTYPES, reference, rowwise
from harness.trace import Assembly, Fault, Kind, Trace

# Many candidates may be judged on the same cases.
row_by_row = lru_cache(maxsize=256)(rowwise)


def judged(
    case: Case,
    candidate: str,
    oracle: Trace,
    baseline: Trace,
    answer: Assembly,
    device: str,
    *,
    source: str,
) -> Comparison:
    """Compare; where that diverges, once more with all the error that plain training makes.

    `device` is what the candidate computed on, and `source` what the oracle is called.
    """
    comparison = compare(case, candidate, oracle, [baseline], answer)
    if comparison.verdict is not Verdict.DIVERGED:
        return comparison
    there, missing = on_device(case, device)
    exact = {"the row-wise oracle": row_by_row(case)}
    if case.dtype == "fp64":
        exact |= {f"plain training on {device}": trace for trace in there}
    for name, witness in exact.items():
        why = doubt(oracle.only(witness), witness)
        if why:
            fault = Fault(kind=Kind.REFERENCE, summary=f"{source} and {name} disagree: {why}")
            return faulted(case, candidate, fault)
    again = list(exact.values())
    if case.dtype != "fp64":
        again = [row_by_row(case, TORCH_DTYPES[case.dtype]), *otherwise_rounded(case)]
        # Its error counts as plain training's own, but not whatever a broken device makes of it.
        known = [baseline, *again]
        strained = max((strain(case.dtype, oracle, known, each) for each in there), default=0.0)
        if strained > STRAIN:
            fault = Fault(
                kind=Kind.REFERENCE,
                summary=f"plain training on {device} is off by {strained:.3g} budgets, more than "
                f"{STRAIN:g}: no candidate can be judged there in {case.dtype}",
            )
            return faulted(case, candidate, fault)
        again += there
    comparison = compare(case, candidate, oracle, [baseline, *again], answer)
    unasked = missing if comparison.verdict is Verdict.DIVERGED else ""
    return replace(comparison, asked_again=True, unasked=unasked)


@lru_cache(maxsize=256)
def otherwise_rounded(case: Case) -> list[Trace]:
    """Plain training with fused attention, which a library may have whatever the case has.

    In fp32 also from weights a rounding away, or two: what was exact by luck is not so again.
    Half precisions did without in all that was tried, and it would let larger mistakes pass.
    """
    fused, dtype = replace(case, kernel="sdpa"), TORCH_DTYPES[case.dtype]
    cases = [fused]
    if case.dtype == "fp32":
        # Towards zero, since a nudge has a limit; and twice, since luck comes twice as well.
        away = copysign(A_ROUNDING_AWAY, case.nudge)
        cases += [replace(fused, nudge=case.nudge - times * away) for times in (1, 2)]
    return [reference(each, dtype) for each in cases]


def on_device(case: Case, device: str) -> tuple[list[Trace], str]:
    """Plain training where the candidate ran, unless that is here; and why some of it is missing.

    Hardware has kernels of its own: fused attention in fp32 may take three passes in TF32, which
    strays farther than any kernel of a CPU.
    """
    if device == "cpu":
        return [], ""
    traces, missing = [], ""
    # In fp64 attention is always written out.
    kernels: tuple[Kernel, ...] = ("eager",) if case.dtype == "fp64" else ("eager", "sdpa")
    for kernel in kernels:
        try:
            traces.append(_there(replace(case, kernel=kernel), device))
        except Exception as error:  # noqa: BLE001 - whatever fails, the verdict stands without it
            said = str(error).partition("\n")[0]
            missing = (
                f"plain training on {device} could not be asked for its own error "
                f"(kernel={kernel}): {type(error).__name__}: {said}"
            )
    if torch.accelerator.is_available():
        # Ranks may need the memory; after some errors a device does not answer any more.
        with suppress(RuntimeError):
            torch.accelerator.empty_cache()
    return traces, missing


@lru_cache(maxsize=256)
def _there(case: Case, device: str) -> Trace:
    with precision.kept():
        return reference(case, TORCH_DTYPES[case.dtype], device=device)
