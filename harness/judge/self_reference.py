"""The candidate's own step at sp 1, as the reference of the same step at a larger sp.

No model of ours is needed for it, and no mapping of weights. What it cannot see is what is wrong
at sp 1 as well; of that one thing shows without any reference: the loss is made of the losses of
tokens as the case says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.against import is_kept, where_alone
from harness.case import Case
from harness.compare import doubt, predicting
from harness.trace import (
    GRADIENT,
    Assembly,
    Entry,
    Fault,
    Kind,
    MisfitKind,
    Outcome,
    Trace,
    Unsupported,
    is_of_plain_training,
    is_required,
)

# What stands there at a token that predicts no target is arbitrary.
OF_TARGETS = ("nll", "weight")


@dataclass(frozen=True, slots=True)
class Alone:
    """What the candidate has to run at sp 1, and which of its tokens is which of the case's."""

    case: Case
    origins: Mapping[int, int]
    # The number of the reference that it is a part of: the oracle is 0.
    reference: int

    @property
    def is_exact(self) -> bool:
        """Whether it is the oracle or confirms it: no limits on dtypes hold for it."""
        return self.case.dtype == "fp64"


def runs_alone(case: Case, *, again: bool) -> list[Alone]:
    """The oracle, then baselines in the case's own dtype.

    To ask `again`, more of them, of what comes to the same and is added up otherwise: every row is
    there twice, in one order and in the other. That it does come to the same shows in fp64.
    """
    exact = replace(case, dtype="fp64", mixed=False)
    runs = _parts(exact, 0)
    if case.dtype == "fp64":
        return runs
    runs += _parts(case, 1)
    if again and not is_kept(case):
        asked = ((case, 1), (case, -1), (exact, -1))
        runs += [
            _of_rows(each, [*rows[::step], *rows], number)
            for number, (each, step) in enumerate(asked, 2)
            for rows in _apart(case)
        ]
    return runs


def runs_three_times(case: Case) -> list[Alone]:
    """The oracle with every row three times: its sums have other factors, and mean the same."""
    exact = replace(case, dtype="fp64", mixed=False)
    return [_of_rows(exact, [*rows] * 3, 0) for rows in _apart(case)]


def _parts(case: Case, number: int) -> list[Alone]:
    if is_kept(case):
        same = {token: token for token in range(case.tokens)}
        return [Alone(replace(case, sp=1), same, number)]
    return [_of_rows(case, rows, number) for rows in _apart(case)]


def _apart(case: Case) -> list[list[int]]:
    """Sets of rows that are run each by itself: the mean of what comes out is the reference."""
    return averaged(case) if case.loss == "micro-mean" else [list(range(len(case.rows)))]


def _of_rows(case: Case, order: Sequence[int], number: int) -> Alone:
    """These rows of the case on one rank, in this order; one that is there twice counts once."""
    other = replace(
        case,
        sp=1,
        dp=1,
        micro_batches=1,
        rows=tuple(case.rows[row] for row in order),
        # Without them, the seed would give a row the ids of its number.
        ids=tuple(case.ids_of(row) for row in order),
    )
    origins = {
        case.offsets[row] + position: other.offsets[place] + position
        for place, row in enumerate(order)
        for position in range(len(case.rows[row]))
    }
    return Alone(other, origins, number)


def references(
    case: Case, alone: Sequence[Alone], outcomes: Sequence[Outcome]
) -> list[Trace] | Fault | Unsupported:
    """What came of these, or why it is no reference."""
    where = f"{where_alone(case)}, with which it is compared"
    for outcome in outcomes:
        if isinstance(outcome, Unsupported):
            # Its limits say nothing of the case itself: others like it need not be left out.
            return Unsupported(f"{where}: {outcome.reason}")
        if isinstance(outcome, Fault):
            return replace(outcome, summary=f"{where}: {outcome.summary}")
    runs = [outcome for outcome in outcomes if isinstance(outcome, Assembly)]
    found = [
        f"{misfit.key}: {misfit.kind}"
        for run in runs
        for misfit in run.misfits
        if is_required(misfit.key) or misfit.kind is not MisfitKind.LOST
    ]
    unemitted = next((run.unemitted for run in runs if run.unemitted), "")
    if unemitted:
        return Fault(kind=Kind.VACUOUS, summary=f"{where_alone(case)}, {unemitted}")
    parts: list[list[Trace]] = [[] for _ in range(1 + alone[-1].reference)]
    for each, run in zip(alone, runs, strict=True):
        parts[each.reference].append(run.trace.renumbered(each.origins))
    found += filter(None, map(_unlike, parts))
    traces = [] if found else list(map(_mean, parts))
    exact = {each.reference for each in alone if each.is_exact}
    why = found[0] if found else _no_reference(case, traces[0])
    traces = [reference_of(case, trace) for trace in traces]
    why = why or _another_step([traces[number] for number in sorted(exact)])
    if why:
        return Fault(kind=Kind.REFERENCE, summary=f"{where}: {why}")
    return [trace for number, trace in enumerate(traces) if number not in exact or number == 0]


def _another_step(exact: Sequence[Trace]) -> str:
    """Why what should come to the same as the oracle does not, or nothing."""
    oracle, *others = (trace.only(list(filter(is_required, trace))) for trace in exact)
    for other in others:
        # A model may compute parts in fp32.
        why = doubt(oracle, other, "fp32")
        if why:
            return (
                f"with the same rows twice over and in another order it is another step ({why}): "
                "draw what a row needs with case.draw(row, name), and not by the row's number; if "
                "it takes means over a batch that change then, judge it in fp64"
            )
    return ""


def _unlike(parts: Sequence[Trace]) -> str:
    """What keeps parts from being put together, or nothing."""
    for key in parts[0]:
        shapes = {
            entry.values.shape[entry.tokens is not None :]
            for entry in (part[key] for part in parts if key in part)
        }
        if len(shapes) > 1:
            return f"{key} has one shape for some rows and another for others: {sorted(shapes)}"
    return ""


def _mean(parts: Sequence[Trace]) -> Trace:
    """Parts put together: tokens stand side by side, and what the loss averages is averaged."""
    if len(parts) == 1:
        return parts[0]
    whole = Trace()
    for key in dict.fromkeys(key for part in parts for key in part):
        entries = [part[key] for part in parts if key in part]
        tokens = [entry.tokens for entry in entries if entry.tokens is not None]
        if len(tokens) == len(entries):
            numbers, values = np.concatenate(tokens), np.concatenate([e.values for e in entries])
            order = np.argsort(numbers)
            # A token's weight in its own part is that many times as large.
            rows = values[order] / len(parts) if key == "weight" else values[order]
            whole.put(key, Entry(rows.astype(values.dtype), numbers[order]))
        elif key == "loss" or key.startswith(GRADIENT):
            total = sum(entry.values.astype(np.float64) for entry in entries)
            whole.put(key, Entry(np.asarray(total / len(parts)).astype(entries[0].values.dtype)))
    return whole


def reference_of(case: Case, trace: Trace) -> Trace:
    """As plain training would give it: without owners, and without what is arbitrary."""
    kept = dict.fromkeys(OF_TARGETS, predicting(case))
    # A row's last token has no next one, and its first none before.
    ends = np.array(case.offsets[1:]) - 1
    kept["labels"] = np.setdiff1d(np.arange(case.tokens), ends)
    inner = np.setdiff1d(kept["labels"], case.offsets)
    reference = Trace()
    # In the order of execution, in whatever order they are emitted; a metric explains nothing.
    for key in sorted(trace, key=lambda key: _place(key, trace[key])):
        entry = trace[key]
        if entry.tokens is not None:
            # A metric of a token may look at its neighbour.
            is_metric = entry.is_light and not is_required(key) and not is_of_plain_training(key)
            compared = kept.get(key, inner if is_metric else entry.tokens)
            rows = np.isin(entry.tokens, compared)
            entry = Entry(entry.values[rows], entry.tokens[rows])
        reference.put(key, entry)
    return reference


def _place(key: str, entry: Entry) -> int:
    if key.startswith(GRADIENT):
        return 2
    if key == "loss":
        return 1
    return 0 if entry.tokens is not None else 3


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
