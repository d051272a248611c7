"""A comparison in words."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from harness.against import ITSELF, reference_name
from harness.anomalies import ANOMALIES
from harness.case import Case
from harness.compare import Comparison, Divergence, Look, Verdict
from harness.trace import (
    GRADIENT,
    Fault,
    Kind,
    Misfit,
    MisfitKind,
    is_of_plain_training,
    is_required,
)
from harness.uncompared import told_of

INDENT = "\n          "
# So many stretches are named of tokens that do not fit together.
MOST_STRETCHES = 4
# So many keys are named that differ and are neither a loss nor a gradient.
MOST_BESIDES = 4
# So many gradients are named that are zero.
MOST_ZERO = 4
# So torch begins what CUDA reports, often at a later call than the one that went wrong.
CUDA_ERROR = "CUDA error"


def explain(comparison: Comparison) -> str:
    """Say who did what, where, what was expected, what came, and what to do next."""
    return "\n".join(told(comparison))


def told(comparison: Comparison) -> list[str]:
    """What there is to tell, each with its word in front; the candidate first, the replay last."""
    lines = [f"{comparison.verdict.name:<9} candidate {comparison.candidate}"]
    lines.append(f"  case    {comparison.case}")
    if comparison.against == ITSELF:
        own = reference_name(comparison.case, ITSELF)
        lines.append(f"  against {own}, which may be wrong as well")
    if comparison.verdict is Verdict.KNOWN:
        lines.append(f"  listed  {comparison.reason}")
    if comparison.fault:
        lines += _fault_lines(comparison.fault)
    elif comparison.verdict is Verdict.UNSUPPORTED:
        lines.append(f"  why     {comparison.reason}")
    elif comparison.verdict in (Verdict.DIVERGED, Verdict.KNOWN):
        lines += _divergence_lines(comparison)
    else:
        lines.append(
            f"  judged  {comparison.elements} elements of "
            f"{len(comparison.keys) - len(comparison.unjudged)} tensors, "
            f"{len(comparison.gradients)} of them gradients; "
            f"largest error {comparison.used:.2g} of its budget"
        )
        lines += _zero_lines(comparison)
        if comparison.unjudged:
            lines.append(f"  but     {', '.join(comparison.unjudged)}: nothing but rounding")
    lines += look_lines(comparison)
    if comparison.mended is not None and comparison.verdict is not Verdict.KNOWN:
        lines += _beside_lines(comparison.mended)
    lines += _besides(comparison)
    if not comparison.verdict.passed:
        lines.append(f"  replay  {replay(comparison)}")
    return lines


def _besides(comparison: Comparison) -> Iterator[str]:
    """What a reader has to know, however it came out."""
    if comparison.uncompared:
        yield f"  extra   {told_of(comparison.uncompared, itself=comparison.against == ITSELF)}"
    if comparison.stood_in:
        yield f"  with    {', '.join(comparison.stood_in)} stood in for by plain torch"


def _zero_lines(comparison: Comparison) -> list[str]:
    """Gradients of which nothing is to be seen."""
    zero = [result.key for result in comparison.gradients if result.zero]
    more = f" and {len(zero) - MOST_ZERO} more" if zero[MOST_ZERO:] else ""
    where = "also at sp 1" if comparison.against == ITSELF else "as they should be"
    return [f"  zero    {', '.join(zero[:MOST_ZERO])}{more}: everywhere, {where}"] if zero else []


def explain_no_start(fault: Fault) -> str:
    """Why no case was run at all."""
    up = fault.kind not in (Kind.START, Kind.LAUNCHER)
    what = "a rank did not survive to load the candidate" if up else "the ranks did not start"
    return "\n".join([f"FAULT     {what}", *_fault_lines(fault)])


def replay(comparison: Comparison) -> str:
    """The command that shows it again."""
    candidate = shlex.quote(comparison.candidate)
    cases = " ".join(f'"{case}"' for case in (*comparison.before, comparison.case))
    words = ["python -m harness repro", cases, "--candidate", candidate, *comparison.options]
    if comparison.ranks:
        words.append(f"--ranks {comparison.ranks}")
    if comparison.fault and CUDA_ERROR in comparison.fault.summary:
        # With it, the stack is that of the call that went wrong.
        words.insert(0, "CUDA_LAUNCH_BLOCKING=1")
    return " ".join(words)


def _divergence_lines(comparison: Comparison) -> list[str]:
    lines = [f"  found   {_misfit(comparison.case, f)}" for f in comparison.misfits[:3]]
    first = comparison.first
    if first:
        lines.append(f"  first   {_where(first)}")
        lines.append(f"  value   {_value(first)}")
    then = _consequences(comparison)
    if then:
        lines.append(f"  then    {then}")
    if comparison.unasked:
        lines.append(f"  but     {comparison.unasked}")
    return lines


def _beside_lines(mended: Comparison) -> list[str]:
    """What a bug that is listed does not explain."""
    _, *bugs = mended.candidate.partition("@")[0].split("+")
    so = f"with {' and '.join(bugs)} mended it is {mended.verdict.name}"
    return [f"  beside  {so}", *(f"  and     {_look(look)}" for look in mended.looks)]


def look_lines(comparison: Comparison) -> list[str]:
    """What it is called, and why."""
    if not comparison.looks:
        return [f"  looks   {comparison.scale}"] if comparison.scale else []
    root, *others = comparison.looks
    lines = [f"  looks   {_look(root)}", f"  cause   usually {ANOMALIES[root.name].cause}"]
    return lines + [f"  and     {_look(other)}" for other in others]


def _look(look: Look) -> str:
    why = f": {look.why}" if look.why else ""
    return f"{look.name}{why}{' (before shrinking)' if look.larger else ''}"


def _where(first: Divergence) -> str:
    if first.row < 0:
        element = f" element {list(first.index)}" if first.index else ""
        return f"{first.key}{element}"
    head = f", head {first.index[1]}" if len(first.index) == 3 else ""
    edge = f"the {first.edge} token of rank {first.owner}'s shard in this row"
    held = edge if first.edge else f"held by rank {first.owner}"
    return f"{first.key}, row {first.row} position {first.position}{head}, {held}"


def _value(first: Divergence) -> str:
    if first.allowed == 0 and first.expected.is_integer() and first.got.is_integer():
        return f"expected {int(first.expected)}, got {int(first.got)}"
    return (
        f"expected {first.expected:.10g}, got {first.got:.10g}; "
        f"off by {first.error:.2g}, allowed {first.allowed:.2g}"
    )


def _consequences(comparison: Comparison) -> str:
    first_key = comparison.first.key if comparison.first else ""
    parts = []
    for result in comparison.keys:
        if result.key == "nll" and result.wrong:
            parts.append(f"nll differs at {result.wrong} of {result.elements} supervised tokens")
        elif result.key == "loss" and result.wrong and comparison.loss:
            expected, got = comparison.loss
            parts.append(f"loss {got:.6g} instead of {expected:.6g}")
    gradients = [r for r in comparison.keys if r.key.startswith(GRADIENT)]
    wrong = [r for r in gradients if r.wrong]
    if wrong:
        how = "" if comparison.scale else " (not proportional)"
        parts.append(f"{len(wrong)} of {len(gradients)} gradients differ{how}")
    elif gradients and first_key:
        parts.append("no gradient differs")
    wrong_keys = [r.key for r in comparison.keys if r.wrong and r.key != first_key]
    besides = [key for key in wrong_keys if _is_beside(key)]
    if besides:
        more = f" and {len(besides) - MOST_BESIDES} more" if besides[MOST_BESIDES:] else ""
        differ = "differs" if len(besides) == 1 else "differ"
        parts.append(f"{', '.join(besides[:MOST_BESIDES])}{more} {differ}")
    right = not any(r.wrong for r in comparison.keys if r.key in ("nll", "loss"))
    if wrong and right and comparison.against == ITSELF:
        parts.append(
            "nll and loss are right, so what is wrong is a term beside them, or backward, or what "
            "sums gradients over ranks"
        )
    if comparison.silent:
        parts.append("no rank sent anything to another")
    return "; ".join(parts)


def _is_beside(key: str) -> bool:
    return not is_required(key) and not is_of_plain_training(key)


def _misfit(case: Case, misfit: Misfit) -> str:
    if misfit.kind is MisfitKind.SPLIT:
        detail = f": {misfit.detail}" if misfit.detail else ""
        ranks = ", ".join(map(str, misfit.ranks))
        return f"{misfit.key}: rank {ranks} holds another copy than rank 0{detail}"
    which = places(case, misfit.tokens, MOST_STRETCHES)
    if misfit.kind is MisfitKind.TWICE:
        return f"{misfit.key}: {which} reported twice, by ranks {list(misfit.ranks)}"
    return f"{misfit.key}: {which} reported by no rank"


def places(case: Case, tokens: Sequence[int], most: int) -> str:
    """Where tokens stand, those that follow each other in a row together."""
    found = [_positions(case, first, last) for first, last in _stretches(case, tokens)]
    more = f" and so on, {len(tokens)} tokens in all" if found[most:] else ""
    return ", ".join(found[:most]) + more


def _stretches(case: Case, tokens: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of tokens that follow each other in a row."""
    found: list[tuple[int, int]] = []
    starts = set(case.offsets)
    for token in tokens:
        if found and token == found[-1][1] + 1 and token not in starts:
            found[-1] = (found[-1][0], token)
        else:
            found.append((token, token))
    return found


def _positions(case: Case, first: int, last: int) -> str:
    row = max(r for r in range(len(case.rows)) if case.offsets[r] <= first)
    start = case.offsets[row]
    return f"row {row} position {first - start}" + (f" to {last - start}" if last > first else "")


def _fault_lines(fault: Fault) -> list[str]:
    lines = [f"  fault   {fault.kind}: {fault.summary}"]
    if fault.last_key:
        lines.append(f"  where   last key reached: {fault.last_key}")
    if fault.ranks:
        lines.append(f"  ranks   {INDENT.join(fault.ranks)}")
    # That of the rank to blame; where no single one is, any shows what they were doing.
    told = [fault.rank] if fault.rank is not None else sorted(fault.stacks)
    for rank in told[:1]:
        if fault.stacks.get(rank):
            frames = fault.stacks[rank].rstrip().splitlines()[-8:]
            lines.append(f"  stack   {INDENT.join([f'of rank {rank}', *frames])}")
    if fault.log:
        lines.append(f"  log     {INDENT.join(fault.log.splitlines()[-6:])}")
    if fault.kind is Kind.START:
        lines.append("  next    python -m harness doctor, which says what can run here")
    return lines
