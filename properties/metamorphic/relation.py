"""Relations between runs of one candidate, which need no reference.

A relation draws a case and its twins. A twin is the same training step in another form, or with a
change that must not affect what is compared. A candidate whose results differ is wrong, whatever
the right result is.

1. Losses of tokens are matched by token numbers, since a twin may move, copy or drop rows.
2. A twin compares up to rounding, or to the last bit where nothing but ignored values changed.
3. Each relation names a mutant that it must kill. So a relation that holds for anything is found.
4. A case that the candidate does not support is no violation; another one is drawn instead.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hypothesis import reject
from hypothesis.strategies import SearchStrategy

from harness.candidates import locate
from harness.case import Case
from harness.compare import agree, identical
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Trace, Unsupported


class Run(Protocol):
    """Run a candidate on cases, and return the traces."""

    def __call__(self, *cases: Case) -> list[Trace]: ...


class Holds(Protocol):
    """Describe how a candidate breaks a relation on what was drawn; return "" if it does not."""

    def __call__(self, run: Run, drawn: Any, /) -> str: ...


@dataclass(frozen=True)
class Relation:
    """A claim about every correct candidate, and a mutant that violates it."""

    claim: str
    drawn: SearchStrategy[Any]
    # The key of the mutant.
    kills: str
    holds: Holds

    def __str__(self) -> str:
        return self.claim.replace(" ", "-")


@dataclass(frozen=True)
class Twin:
    """Another case, and which results on it follow from the results on the first."""

    case: Case
    # Token n of this case must have the loss of token `tokens[n]` of the first.
    tokens: Mapping[int, int]
    # Whether the loss and every gradient must be the same, too.
    is_whole: bool = True
    # Whether even the rounding must be the same.
    is_exact: bool = False


@dataclass(frozen=True)
class Twins:
    """A case and its twins."""

    first: Case
    others: tuple[Twin, ...]


def twins_agree(run: Run, twins: Twins) -> str:
    """Each twin has the results that it must share with the first case."""
    __tracebackhide__ = True
    first, *others = run(twins.first, *(twin.case for twin in twins.others))
    for twin, other in zip(twins.others, others, strict=True):
        expected = first.renumbered(twin.tokens)
        got = other.renumbered({token: token for token in twin.tokens})
        # The weight of a loss depends on the number of targets, which a twin may change.
        keys = ["nll"] if not twin.is_whole else [key for key in expected if key != "weight"]
        expected, got = (trace.only(keys) for trace in (expected, got))
        found = (identical if twin.is_exact else agree)(expected, got)
        if found:
            return f"{found}\n  {twins.first}\n  {twin.case}"
    return ""


def runner(pool: RankPool, candidate: str, refused: Counter[str]) -> Run:
    """Make a function that runs a candidate on real ranks.

    It raises an AssertionError if a run fails or its fragments do not fit together. If the
    candidate does not support a case, it counts the reason in `refused`, and Hypothesis draws
    another one.
    """

    def run(*cases: Case) -> list[Trace]:
        # Why a run failed comes before code, in a log whose middle is cut out.
        __tracebackhide__ = True
        for case in cases:
            pool.submit(case, locate(locate(candidate).full))
        outcomes = [pool.collect() for _ in cases]
        reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Unsupported)]
        if reasons:
            refused.update(reasons[:1])
            reject()
        traces = []
        for case, outcome in zip(cases, outcomes, strict=True):
            assert isinstance(outcome, Assembly), f"{outcome}\n{case}"
            assert not outcome.misfits, f"{outcome.misfits}\n{case}"
            traces.append(outcome.trace)
        return traces

    return run


def with_ids(case: Case) -> Case:
    """State the token ids of a case, so that its rows can move or change."""
    return replace(case, ids=tuple(case.ids_of(row) for row in range(len(case.rows))))


def arranged(case: Case, order: Sequence[int], **changes: Any) -> Case:
    """Rearrange rows: row i of the new case is row `order[i]` of this one."""
    return replace(
        case,
        rows=tuple(case.rows[row] for row in order),
        ids=tuple(case.ids_of(row) for row in order),
        **changes,
    )


def tokens_of(case: Case, first: Case, origins: Mapping[int, int]) -> dict[int, int]:
    """Map tokens of `case` to those of `first`, where row r is row `origins[r]`.

    This leaves out the last token of each row, whose label belongs to another row.
    """
    return {
        case.offsets[row] + t: first.offsets[origin] + t
        for row, origin in origins.items()
        for t in range(len(case.rows[row]) - 1)
    }


def all_tokens(case: Case) -> dict[int, int]:
    """Map every token to itself, for rows that stay in their places."""
    return tokens_of(case, case, {row: row for row in range(len(case.rows))})
