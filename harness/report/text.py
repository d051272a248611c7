"""A comparison explained in lines of text.

Each line begins with a label, such as `case`, `first` or `looks`. Longer texts, such as stacks, go
on below it, indented. Pages and short texts pick lines by their labels.
"""

from collections.abc import Iterable, Iterator, Sequence

from harness.against import ITSELF, names_recipe, reference_name
from harness.anomalies import ANOMALIES
from harness.case import Case
from harness.compare import Comparison, Divergence, Look, Verdict
from harness.report.columns import column_lines
from harness.report.replay_command import replay
from harness.trace import (
    GRADIENT,
    Fault,
    Kind,
    Misfit,
    MisfitKind,
    is_of_plain_training,
    is_required,
)
from harness.uncompared import describe_uncompared

INDENT = "\n          "
# A line names so many stretches of tokens that two ranks report, or none does.
MOST_STRETCHES = 4
# A line names so many wrong keys that are neither a loss nor a gradient.
MOST_OTHER_KEYS = 4
# A line names so many gradients that are zero.
MOST_ZERO = 4


def explain(comparison: Comparison) -> str:
    """Explain a comparison: what was expected where, what came, and which command replays it."""
    return "\n".join(explanation_lines(comparison))


def explanation_lines(comparison: Comparison) -> list[str]:
    """Return the lines of the explanation, each with its label; a line may hold line breaks."""
    lines = [f"{comparison.verdict.name:<9} candidate {comparison.candidate}"]
    lines.append(f"  case    {comparison.case}")
    lines += _reference_lines(comparison)
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
            f"  judged  {comparison.measured.elements} elements of "
            f"{len(comparison.measured.keys) - len(comparison.measured.unjudged)} tensors, "
            f"{len(comparison.gradients)} of them gradients; "
            f"largest error {comparison.measured.used:.2g} of its budget"
        )
        lines += _zero_lines(comparison)
        if comparison.measured.unjudged:
            lines.append(
                f"  but     {', '.join(comparison.measured.unjudged)}: nothing but rounding"
            )
    lines += _columns_lines(comparison)
    lines += name_lines(comparison)
    if comparison.inquiry.mended is not None and comparison.verdict is not Verdict.KNOWN:
        lines += _mended_lines(comparison.inquiry.mended)
    lines += _caveat_lines(comparison)
    if not comparison.verdict.passed:
        lines.append(f"  replay  {replay(comparison)}")
    return lines


def _reference_lines(comparison: Comparison) -> Iterator[str]:
    """Name the reference, if the user chose one."""
    name = reference_name(comparison.case, comparison.against)
    if comparison.against == ITSELF:
        yield f"  against {name}, which may be wrong as well"
    elif names_recipe(comparison.against):
        yield f"  against {name}"


def _columns_lines(comparison: Comparison) -> Iterator[str]:
    """Show the columns of the batch, if its recipe has some."""
    columns = list(column_lines(comparison.case, comparison.inquiry.columns))
    if columns:
        yield f"  columns {INDENT.join(columns)}"


def _caveat_lines(comparison: Comparison) -> Iterator[str]:
    """Yield what limits any verdict: keys without a comparison, and packages that are missing."""
    if comparison.measured.uncompared:
        keys = describe_uncompared(
            comparison.measured.uncompared, itself=comparison.against == ITSELF
        )
        yield f"  extra   {keys}"
    if comparison.measured.stood_in:
        yield f"  with    {', '.join(comparison.measured.stood_in)} stood in for by plain torch"


def _zero_lines(comparison: Comparison) -> list[str]:
    """Name the gradients that are zero everywhere."""
    zero = [result.key for result in comparison.gradients if result.zero]
    more = f" and {len(zero) - MOST_ZERO} more" if zero[MOST_ZERO:] else ""
    where = "also at sp 1" if comparison.against == ITSELF else "as they should be"
    return [f"  zero    {', '.join(zero[:MOST_ZERO])}{more}: everywhere, {where}"] if zero else []


def explain_no_start(fault: Fault) -> str:
    """Explain a fault because of which no case was run at all."""
    has_started = fault.kind not in (Kind.START, Kind.LAUNCHER)
    what = "a rank did not survive to load the candidate"
    if not has_started:
        what = "the ranks did not start"
    return "\n".join([f"FAULT     {what}", *_fault_lines(fault)])


def _divergence_lines(comparison: Comparison) -> list[str]:
    case, first, then = comparison.case, comparison.measured.first, _consequences(comparison)
    lines = [
        f"  found   {_describe_misfit(case, misfit)}" for misfit in comparison.measured.misfits[:3]
    ]
    if first:
        lines.append(f"  first   {_describe_place(first)}")
        lines.append(f"  value   {_describe_values(first)}")
    if then:
        lines.append(f"  then    {then}")
    if comparison.unasked:
        lines.append(f"  but     {comparison.unasked}")
    return lines


def _mended_lines(mended: Comparison) -> list[str]:
    """Say how the candidate does once its listed bugs are mended: they do not explain the rest."""
    _, *bugs = mended.candidate.partition("@")[0].split("+")
    outcome = f"with {' and '.join(bugs)} mended it is {mended.verdict.name}"
    return [
        f"  beside  {outcome}",
        *(f"  and     {_describe_look(look)}" for look in mended.inquiry.looks),
    ]


def name_lines(comparison: Comparison) -> list[str]:
    """Return the lines with its names, what shows them, and the usual cause of the first."""
    if not comparison.inquiry.looks:
        return [f"  looks   {comparison.measured.scale}"] if comparison.measured.scale else []
    root, *others = comparison.inquiry.looks
    lines = [f"  looks   {_describe_look(root)}"]
    lines.append(f"  cause   usually {ANOMALIES[root.name].cause}")
    return lines + [f"  and     {_describe_look(other)}" for other in others]


def _describe_look(look: Look) -> str:
    why = f": {look.why}" if look.why else ""
    return f"{look.name}{why}{' (before shrinking)' if look.larger else ''}"


def _describe_place(first: Divergence) -> str:
    if first.row < 0:
        element = f" element {list(first.index)}" if first.index else ""
        return f"{first.key}{element}"
    head = f", head {first.index[1]}" if len(first.index) == 3 else ""
    at_edge = f"the {first.edge} token of rank {first.owner}'s shard in this row"
    owner = at_edge if first.edge else f"held by rank {first.owner}"
    return f"{first.key}, row {first.row} position {first.position}{head}, {owner}"


def _describe_values(first: Divergence) -> str:
    if first.allowed == 0 and first.expected.is_integer() and first.got.is_integer():
        return f"expected {int(first.expected)}, got {int(first.got)}"
    return (
        f"expected {first.expected:.10g}, got {first.got:.10g}; "
        f"off by {first.error:.2g}, allowed {first.allowed:.2g}"
    )


def _consequences(comparison: Comparison) -> str:
    """Describe what else differs: losses, gradients, and other keys after the first."""
    first_key = comparison.measured.first.key if comparison.measured.first else ""
    parts = []
    for result in comparison.measured.keys:
        if result.key == "nll" and result.wrong:
            parts.append(f"nll differs at {result.wrong} of {result.elements} supervised tokens")
        elif result.key == "loss" and result.wrong and comparison.measured.loss:
            expected, got = comparison.measured.loss
            parts.append(f"loss {got:.6g} instead of {expected:.6g}")
    gradients = [r for r in comparison.measured.keys if r.key.startswith(GRADIENT)]
    wrong = [r for r in gradients if r.wrong]
    if wrong:
        how = "" if comparison.measured.scale else " (not proportional)"
        parts.append(f"{len(wrong)} of {len(gradients)} gradients differ{how}")
    elif gradients and first_key:
        parts.append("no gradient differs")
    wrong_keys = [r.key for r in comparison.measured.keys if r.wrong and r.key != first_key]
    others = [k for k in wrong_keys if not is_required(k) and not is_of_plain_training(k)]
    if others:
        more = f" and {len(others) - MOST_OTHER_KEYS} more" if others[MOST_OTHER_KEYS:] else ""
        differ = "differs" if len(others) == 1 else "differ"
        parts.append(f"{', '.join(others[:MOST_OTHER_KEYS])}{more} {differ}")
    losses_are_right = not any(
        r.wrong for r in comparison.measured.keys if r.key in ("nll", "loss")
    )
    if wrong and losses_are_right and comparison.against == ITSELF:
        parts.append(
            "nll and loss are right, so what is wrong is a term beside them, or backward, or what "
            "sums gradients over ranks"
        )
    if comparison.measured.silent:
        parts.append("no rank sent anything to another")
    return "; ".join(parts)


def _describe_misfit(case: Case, misfit: Misfit) -> str:
    if misfit.kind is MisfitKind.SPLIT:
        detail = f": {misfit.detail}" if misfit.detail else ""
        ranks = ", ".join(map(str, misfit.ranks))
        return f"{misfit.key}: rank {ranks} holds another copy than rank 0{detail}"
    positions = describe_positions(case, misfit.tokens, MOST_STRETCHES)
    if misfit.kind is MisfitKind.TWICE:
        return f"{misfit.key}: {positions} reported twice, by ranks {list(misfit.ranks)}"
    return f"{misfit.key}: {positions} reported by no rank"


def describe_positions(case: Case, tokens: Sequence[int], most: int) -> str:
    """Return the rows and positions of tokens; name at most so many stretches of adjacent ones."""
    stretches = [_describe_stretch(case, *ends) for ends in _stretches(case, tokens)]
    more = f" and so on, {len(tokens)} tokens in all" if stretches[most:] else ""
    return ", ".join(stretches[:most]) + more


def _stretches(case: Case, tokens: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last token of each stretch of adjacent tokens of one row."""
    stretches: list[tuple[int, int]] = []
    starts = set(case.offsets)
    for token in tokens:
        if stretches and token == stretches[-1][1] + 1 and token not in starts:
            stretches[-1] = (stretches[-1][0], token)
        else:
            stretches.append((token, token))
    return stretches


def _describe_stretch(case: Case, first: int, last: int) -> str:
    row = max(r for r in range(len(case.rows)) if case.offsets[r] <= first)
    start = case.offsets[row]
    return f"row {row} position {first - start}" + (f" to {last - start}" if last > first else "")


def _fault_lines(fault: Fault) -> list[str]:
    lines = [f"  fault   {fault.kind}: {fault.summary}"]
    if fault.last_key:
        lines.append(f"  where   last key reached: {fault.last_key}")
    if fault.ranks:
        lines.append(f"  ranks   {INDENT.join(fault.ranks)}")
    # If no single rank is to blame, the stack of any rank shows what they were doing.
    ranks = [fault.rank] if fault.rank is not None else sorted(fault.stacks)
    for rank in ranks[:1]:
        if fault.stacks.get(rank):
            frames = fault.stacks[rank].rstrip().splitlines()[-8:]
            lines.append(f"  stack   {INDENT.join([f'of rank {rank}', *frames])}")
    if fault.log:
        lines.append(f"  log     {INDENT.join(fault.log.splitlines()[-6:])}")
    if fault.kind is Kind.START:
        lines.append("  next    python -m harness doctor, which says what can run here")
    return lines
