"""Computes plain training in further ways before a candidate is blamed.

The further ways show how far plain training itself strays from the oracle in this case. If they
contradict each other, the fault is the reference's. In fp64 a candidate that comes close to its
budget has them computed as well: they show whether the case is ill-conditioned.
"""

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import copysign

import torch

from harness.case import Case, Kernel
from harness.compare import (
    CLOSE,
    MOST_BUDGETS_OF_DEVICE,
    ROUNDING_NUDGE,
    Comparison,
    Verdict,
    compare,
    doubt,
    fault_comparison,
    worst_budget_use,
)
from harness.rank_program import precision
from harness.reference import TORCH_DTYPES, reference, rowwise
from harness.trace import Assembly, Fault, Kind, Trace

# As many fp32 numbers as the widest registers of a CPU hold: kernels compute rows in such pieces,
# and more of them would only take time.
MOST_FURTHER_COLUMNS = 16

# Cached because many candidates may be judged on the same cases.
cached_rowwise = lru_cache(maxsize=256)(rowwise)


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
    """Compare; if that diverges or nearly does, compare again with the errors of further ways.

    `device` is what the candidate computed on, and `source` is what messages call the oracle.
    """
    comparison = compare(case, candidate, oracle, [baseline], answer)
    is_close = case.dtype == "fp64" and comparison.measured.used > CLOSE
    if comparison.verdict is not Verdict.DIVERGED and not is_close:
        return comparison
    device_traces, missing = traces_on_device(case, device)
    witnesses = {"the row-wise oracle": cached_rowwise(case)}
    if case.dtype == "fp64":
        witnesses |= {f"plain training on {device}": trace for trace in device_traces}
    for name, witness in witnesses.items():
        contradiction = doubt(oracle.only(witness), witness)
        if contradiction:
            summary = f"{source} and {name} disagree: {contradiction}"
            return fault_comparison(case, candidate, Fault(kind=Kind.REFERENCE, summary=summary))
    further = [*differently_rounded(case)]
    if case.dtype == "fp64":
        further += witnesses.values()
    else:
        further += [cached_rowwise(case, TORCH_DTYPES[case.dtype])]
        # A device's error counts as plain training's own, unless it is so large that the device
        # is broken.
        known = [baseline, *further]
        uses = (worst_budget_use(case.dtype, oracle, known, trace) for trace in device_traces)
        worst = max(uses, default=0.0)
        if worst > MOST_BUDGETS_OF_DEVICE:
            fault = Fault(
                kind=Kind.REFERENCE,
                summary=f"plain training on {device} is off by {worst:.3g} budgets, more than "
                f"{MOST_BUDGETS_OF_DEVICE:g}: no candidate can be judged there in {case.dtype}",
            )
            return fault_comparison(case, candidate, fault)
        further += device_traces
    comparison = compare(case, candidate, oracle, [baseline, *further], answer)
    unasked = missing if comparison.verdict is Verdict.DIVERGED else ""
    return replace(comparison, asked_again=True, unasked=unasked)


@lru_cache(maxsize=256)
def differently_rounded(case: Case) -> list[Trace]:
    """Return plain training with fused attention, which a library may use whatever the case has.

    In fp64, where attention is always written out, and in fp32 return it from weights moved by one
    and by two ROUNDING_NUDGE: a number that was exact by luck is then not exact. Its rows are
    padded towards the length of a stream of all rows, because a fused kernel may compute short
    rows more exactly. Half precisions never needed that: there it would let larger errors pass.
    """
    fused, dtype = replace(case, kernel="sdpa"), TORCH_DTYPES[case.dtype]
    traces = [reference(fused, dtype)] if case.dtype != "fp64" else []
    if case.dtype in ("fp64", "fp32"):
        # Towards zero, because a nudge has a limit; twice, because one may be exact by luck too.
        away = copysign(ROUNDING_NUDGE[case.dtype], case.nudge)
        missing = case.tokens + case.sp - max(len(row) for row in case.rows)
        columns = min(missing, MOST_FURTHER_COLUMNS)
        for times in (1, 2):
            nudged = replace(fused, nudge=case.nudge - times * away)
            traces.append(reference(nudged, dtype, further_columns=columns))
    return traces


def traces_on_device(case: Case, device: str) -> tuple[list[Trace], str]:
    """Return plain training on the candidate's device, and why some of it is missing, or "".

    Hardware has kernels of its own: fused attention in fp32 may take three passes in TF32, which
    strays farther than any kernel of a CPU. On a CPU there is nothing to add.
    """
    if device == "cpu":
        return [], ""
    traces, missing = [], ""
    # In fp64 attention is always written out.
    kernels: tuple[Kernel, ...] = ("eager",) if case.dtype == "fp64" else ("eager", "sdpa")
    for kernel in kernels:
        try:
            traces.append(_trace_on_device(replace(case, kernel=kernel), device))
        except Exception as error:  # noqa: BLE001 - whatever fails, the verdict stands without it
            first_line = str(error).partition("\n")[0]
            missing = (
                f"plain training on {device} could not be asked for its own error "
                f"(kernel={kernel}): {type(error).__name__}: {first_line}"
            )
    if torch.accelerator.is_available():
        # Ranks may need the memory. After some errors a device does not respond any more.
        with suppress(RuntimeError):
            torch.accelerator.empty_cache()
    return traces, missing


@lru_cache(maxsize=256)
def _trace_on_device(case: Case, device: str) -> Trace:
    with precision.full_precision():
        return reference(case, TORCH_DTYPES[case.dtype], device=device)
