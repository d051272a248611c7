"""The candidate's own step at sp 1, as the reference of the same step at a larger sp.

No model of ours is needed for it, and no mapping of weights. What it cannot see is what is wrong
at sp 1 as well; of that one thing shows without any reference: the loss is made of the losses of
tokens as the case says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.case import Case
from harness.compare import doubt, predicting
from harness.trace import GRADIENT, Assembly, Entry, Fault, Kind, Outcome, Trace, Unsupported

# What stands there at a token that predicts no target is arbitrary.
OF_TARGETS = ("nll", "weight")
AT_SP_1 = "at sp 1, with which it is compared"


@dataclass(frozen=True, slots=True)
class Alone:
    """What the candidate has to run at sp 1, and which of its tokens is which of the case's."""

    case: Case
    origins: Mapping[int, int]


def runs_alone(case: Case, *, again: bool) -> list[Alone]:
    """The oracle, then baselines in the case's own dtype; more of them to ask `again`."""
    same = {token: token for token in range(case.tokens)}
    oracle = Alone(replace(case, sp=1, dtype="fp64", mixed=False), same)
    if case.dtype == "fp64":
        return [oracle]
    return [oracle, Alone(replace(case, sp=1), same), *(rearranged(case) if again else ())]


def rearranged(case: Case) -> Iterator[Alone]:
    """What comes to the same, added up otherwise: it shows more of the rounding.

    Every row is there twice, in one order and in the other. A mean over micro-batches would be
    another mean then.
    """
    if case.loss == "micro-mean":
        return
    rows = range(len(case.rows))
    for first in (list(rows), list(reversed(rows))):
        order = [*first, *rows]
        other = replace(
            case,
            sp=1,
            dp=1,
            micro_batches=1,
            rows=tuple(case.rows[row] for row in order),
            ids=tuple(case.ids_of(row) for row in order),
        )
        origins = {
            case.offsets[row] + position: other.offsets[place] + position
            for place, row in enumerate(first)
            for position in range(len(case.rows[row]))
        }
        yield Alone(other, origins)


def references(
    case: Case, alone: Sequence[Alone], outcomes: Sequence[Outcome]
) -> list[Trace] | Fault | Unsupported:
    """What came of these, or why it is no reference."""
    for outcome in outcomes:
        if isinstance(outcome, Unsupported):
            return Unsupported(f"{AT_SP_1}: {outcome.reason}", outcome.limits)
        if isinstance(outcome, Fault):
            return replace(outcome, summary=f"{AT_SP_1}: {outcome.summary}")
    runs = [outcome for outcome in outcomes if isinstance(outcome, Assembly)]
    found = [f"{misfit.key}: {misfit.kind}" for run in runs for misfit in run.misfits]
    why = found[0] if found else _no_reference(case, runs[0].trace)
    if why:
        return Fault(kind=Kind.REFERENCE, summary=f"{AT_SP_1}: {why}")
    return [
        reference_of(case, run.trace.renumbered(each.origins))
        for each, run in zip(alone, runs, strict=True)
    ]


def reference_of(case: Case, trace: Trace) -> Trace:
    """As plain training would give it: without owners, and without what is arbitrary."""
    kept = dict.fromkeys(OF_TARGETS, predicting(case))
    # A row's last token has no next one.
    kept["labels"] = np.setdiff1d(np.arange(case.tokens), np.array(case.offsets[1:]) - 1)
    reference = Trace()
    # In the order of execution, in whatever order they are emitted.
    for key in sorted(trace, key=lambda key: (key.startswith(GRADIENT), key == "loss")):
        entry = trace[key]
        if entry.tokens is not None:
            rows = np.isin(entry.tokens, kept[key]) if key in kept else ...
            entry = Entry(entry.values[rows], entry.tokens[rows])
        reference.put(key, entry)
    return reference


def _no_reference(case: Case, oracle: Trace) -> str:
    """Why the step at sp 1 is nothing to compare with, or nothing."""
    for key in ("nll", "loss"):
        if key not in oracle:
            return f"key {key!r} was never emitted"
    expected = Trace()
    expected.put("loss", Entry(np.array(loss_of(case, oracle["nll"]))))
    # Many a library computes losses in fp32, whatever its model has.
    in_fp32 = any(oracle[key].values.dtype == np.float32 for key in ("nll", "loss"))
    why = doubt(expected, oracle.only(["loss"]), "fp32" if in_fp32 else "fp64")
    if not why:
        return ""
    got, wanted = float(oracle["loss"].values), float(expected["loss"].values)
    return f"loss {got:.6g} is not the {case.loss} of its nll, which is {wanted:.6g}"


def loss_of(case: Case, nll: Entry) -> float:
    """What the case's loss contract makes of the losses of tokens."""
    by_token = np.zeros(case.tokens)
    by_token[nll.tokens] = nll.values
    means = [
        float(np.mean(by_token[terms])) if terms else 0.0
        for terms in (
            [case.offsets[row] + p - 1 for row in rows for p in case.rows[row].supervised()]
            for rows in averaged(case)
        )
    ]
    return sum(means) / len(means)


def averaged(case: Case) -> list[list[int]]:
    """Sets of rows; the loss is the mean of their means."""
    rows = list(range(len(case.rows)))
    if case.loss == "token-mean":
        return [rows]
    if case.loss == "row-mean":
        return [[row] for row in rows]
    return [
        [int(row) for row in part]
        for replica in range(case.dp)
        for part in np.array_split(np.array(rows[replica :: case.dp]), case.micro_batches)
    ]
