"""Makes the candidate's own step at sp 1 the reference of the same step at a larger sp.

This needs no model of the harness and no mapping of weights. A bug that sp 1 has too cannot be
seen, with one exception: the loss must be what the loss contract makes of the tokens' losses.

1. A *self run* is one run of the candidate at sp 1. The reference may be the mean of several,
   such as one for each micro-batch.
2. `self_runs` says which runs are needed, and `references` turns their outcomes into the oracle
   and the baselines.
3. Below fp64 further runs show the candidate's own rounding: they repeat rows in other orders.
   That they compute the same step is checked in fp64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.against import describe_self_sizes, needs_own_mesh
from harness.case import Case
from harness.compare import doubt, predicting_tokens
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

# The values of these keys at tokens that predict no target are arbitrary.
TARGET_KEYS = ("nll", "weight")


@dataclass(frozen=True, slots=True)
class SelfRun:
    """One run of the candidate at sp 1."""

    case: Case
    # By token number of the judged case, the number of the same token in this run's case.
    origins: Mapping[int, int]
    # The number of the reference that this run is a part of: the oracle is 0.
    reference: int

    @property
    def is_exact(self) -> bool:
        """Whether it is a run in fp64, for which no limits of the candidate on dtypes hold."""
        return self.case.dtype == "fp64"


def self_runs(case: Case, *, again: bool) -> list[SelfRun]:
    """Return the runs of the oracle, then those of the baseline in the case's own dtype.

    With `again`, return runs of further baselines: they have every row twice, in two orders, so
    that equal sums are added up differently. One more run in fp64 can show that they are equal.
    """
    exact = replace(case, dtype="fp64", mixed=False)
    runs = _runs_of_reference(exact, 0)
    if case.dtype == "fp64":
        return runs
    runs += _runs_of_reference(case, 1)
    if again and not needs_own_mesh(case):
        variants = ((case, 1), (case, -1), (exact, -1))
        runs += [
            _run_of_rows(variant, [*rows[::step], *rows], number)
            for number, (variant, step) in enumerate(variants, 2)
            for rows in _row_sets(case)
        ]
    return runs


def tripled_self_runs(case: Case) -> list[SelfRun]:
    """Return the runs of an oracle with every row three times: other sums for equal means."""
    exact = replace(case, dtype="fp64", mixed=False)
    return [_run_of_rows(exact, [*rows] * 3, 0) for rows in _row_sets(case)]


def _runs_of_reference(case: Case, number: int) -> list[SelfRun]:
    if needs_own_mesh(case):
        same = {token: token for token in range(case.tokens)}
        return [SelfRun(replace(case, sp=1), same, number)]
    return [_run_of_rows(case, rows, number) for rows in _row_sets(case)]


def _row_sets(case: Case) -> list[list[int]]:
    """Return the sets of rows that run separately; the reference is the mean of their results."""
    return averaged_row_sets(case) if case.loss == "micro-mean" else [list(range(len(case.rows)))]


def _run_of_rows(case: Case, order: Sequence[int], number: int) -> SelfRun:
    """Return the run of these rows on one rank, in this order.

    The origins of a row that occurs several times are those of its last occurrence.
    """
    other = replace(
        case,
        sp=1,
        dp=1,
        micro_batches=1,
        rows=tuple(case.rows[row] for row in order),
        # Stated, because the seed gives a row other ids at another place.
        ids=tuple(case.ids_of(row) for row in order),
    )
    origins = {
        case.offsets[row] + position: other.offsets[place] + position
        for place, row in enumerate(order)
        for position in range(len(case.rows[row]))
    }
    return SelfRun(other, origins, number)


def references(
    case: Case, self_runs: Sequence[SelfRun], outcomes: Sequence[Outcome]
) -> list[Trace] | Fault | Unsupported:
    """Return the oracle and the baselines that these runs give, or why they give none."""
    sizes = describe_self_sizes(case)
    where = f"{sizes}, with which it is compared"
    for outcome in outcomes:
        if isinstance(outcome, Unsupported):
            # Its limits are dropped: they are about the run at sp 1, and not about the case.
            return Unsupported(f"{where}: {outcome.reason}")
        if isinstance(outcome, Fault):
            return replace(outcome, summary=f"{where}: {outcome.summary}")
    assemblies = [outcome for outcome in outcomes if isinstance(outcome, Assembly)]
    problems = [
        f"{misfit.key}: {misfit.kind}"
        for assembly in assemblies
        for misfit in assembly.misfits
        if is_required(misfit.key) or misfit.kind is not MisfitKind.LOST
    ]
    unemitted = next((assembly.unemitted for assembly in assemblies if assembly.unemitted), "")
    if unemitted:
        return Fault(kind=Kind.VACUOUS, summary=f"{sizes}, {unemitted}")
    parts: list[list[Trace]] = [[] for _ in range(1 + self_runs[-1].reference)]
    for run, assembly in zip(self_runs, assemblies, strict=True):
        parts[run.reference].append(assembly.trace.renumbered(run.origins))
    problems += filter(None, map(_shape_conflict, parts))
    traces = [] if problems else list(map(_joined, parts))
    exact = {run.reference for run in self_runs if run.is_exact}
    problem = problems[0] if problems else _unusable_oracle(case, traces[0])
    traces = [as_reference(case, trace) for trace in traces]
    problem = problem or _oracle_conflict([traces[number] for number in sorted(exact)])
    if problem:
        return Fault(kind=Kind.REFERENCE, summary=f"{where}: {problem}")
    return [trace for number, trace in enumerate(traces) if number not in exact or number == 0]


def _oracle_conflict(exact: Sequence[Trace]) -> str:
    """Return how an fp64 trace that must equal the oracle differs from it, or ""."""
    oracle, *others = (trace.only(list(filter(is_required, trace))) for trace in exact)
    for other in others:
        # fp32, because a model may compute parts in it.
        difference = doubt(oracle, other, "fp32")
        if difference:
            return (
                "with the same rows twice over and in another order it is another step "
                f"({difference}): draw what a row needs with case.draw(row, name), and not by the "
                "row's number; if it takes means over a batch that change then, judge it in fp64"
            )
    return ""


def _shape_conflict(parts: Sequence[Trace]) -> str:
    """Return the key whose parts have different shapes and cannot be joined, or ""."""
    for key in parts[0]:
        shapes = {
            entry.values.shape[entry.tokens is not None :]
            for entry in (part[key] for part in parts if key in part)
        }
        if len(shapes) > 1:
            return f"{key} has one shape for some rows and another for others: {sorted(shapes)}"
    return ""


def _joined(parts: Sequence[Trace]) -> Trace:
    """Return one trace of all parts: rows of all tokens, and means of the loss and gradients."""
    if len(parts) == 1:
        return parts[0]
    whole = Trace()
    for key in dict.fromkeys(key for part in parts for key in part):
        entries = [part[key] for part in parts if key in part]
        tokens = [entry.tokens for entry in entries if entry.tokens is not None]
        if len(tokens) == len(entries):
            numbers, values = np.concatenate(tokens), np.concatenate([e.values for e in entries])
            order = np.argsort(numbers)
            # The loss of the whole is a mean over parts, so each token weighs less in it.
            rows = values[order] / len(parts) if key == "weight" else values[order]
            whole.put(key, Entry(rows.astype(values.dtype), numbers[order]))
        elif key == "loss" or key.startswith(GRADIENT):
            total = sum(entry.values.astype(np.float64) for entry in entries)
            whole.put(key, Entry(np.asarray(total / len(parts)).astype(entries[0].values.dtype)))
    return whole


def as_reference(case: Case, trace: Trace) -> Trace:
    """Return the trace as plain training would give it: without owners and arbitrary values."""
    compared_tokens = dict.fromkeys(TARGET_KEYS, predicting_tokens(case))
    # The last token of a row has no label.
    ends = np.array(case.offsets[1:]) - 1
    compared_tokens["labels"] = np.setdiff1d(np.arange(case.tokens), ends)
    inner = np.setdiff1d(compared_tokens["labels"], case.offsets)
    reference = Trace()
    # Candidates emit in any order. Here keys are in the order of execution, with metrics last.
    for key in sorted(trace, key=lambda key: _execution_order(key, trace[key])):
        entry = trace[key]
        if entry.tokens is not None:
            # A metric may use the neighbours of its token, so only tokens with both are compared.
            is_metric = entry.is_light and not is_required(key) and not is_of_plain_training(key)
            compared = compared_tokens.get(key, inner if is_metric else entry.tokens)
            rows = np.isin(entry.tokens, compared)
            entry = Entry(entry.values[rows], entry.tokens[rows])
        reference.put(key, entry)
    return reference


def _execution_order(key: str, entry: Entry) -> int:
    if key.startswith(GRADIENT):
        return 2
    if key == "loss":
        return 1
    return 0 if entry.tokens is not None else 3


def _unusable_oracle(case: Case, oracle: Trace) -> str:
    """Return why the step at sp 1 cannot be a reference, or ""."""
    for key in ("nll", "loss"):
        if key not in oracle:
            return f"key {key!r} was never emitted"
    expected = Trace()
    expected.put("loss", Entry(np.array(contract_loss(case, oracle["nll"]))))
    # Many libraries compute losses in fp32, whatever the dtype of the model is.
    in_fp32 = any(oracle[key].values.dtype == np.float32 for key in ("nll", "loss"))
    if not doubt(expected, oracle.only(["loss"]), "fp32" if in_fp32 else "fp64"):
        return ""
    got, wanted = float(oracle["loss"].values), float(expected["loss"].values)
    return f"loss {got:.6g} is not the {case.loss} of its nll, which is {wanted:.6g}"


def contract_loss(case: Case, nll: Entry) -> float:
    """Return the loss that the case's loss contract makes of the losses of tokens."""
    by_token = np.zeros(case.tokens)
    by_token[nll.tokens] = nll.values
    means = [
        float(np.mean(by_token[terms])) if terms else 0.0
        for terms in (
            [case.offsets[row] + p - 1 for row in rows for p in case.rows[row].supervised()]
            for rows in averaged_row_sets(case)
        )
    ]
    return sum(means) / len(means)


def averaged_row_sets(case: Case) -> list[list[int]]:
    """Return the sets of rows of which the loss averages the means."""
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
