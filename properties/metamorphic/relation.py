"""What must stay the same between two runs of one candidate; no reference says what it is.

A relation draws a case and its twins: the same training step written down another way, or with
one thing changed that must not reach what is compared. A candidate that treats them differently
is wrong, whatever is right.
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
    """A candidate, as a relation sees it: cases in, what it computed out."""

    def __call__(self, *cases: Case) -> list[Trace]: ...


class Holds(Protocol):
    """Where a candidate breaks a relation on what was drawn, in words; or nothing."""

    def __call__(self, run: Run, drawn: Any, /) -> str: ...


@dataclass(frozen=True)
class Relation:
    """A claim about every candidate, and the proof that it is not idle."""

    claim: str
    drawn: SearchStrategy[Any]
    # A mutant of the bank, right but for the one thing that the claim is about.
    kills: str
    holds: Holds

    def __str__(self) -> str:
        return self.claim.replace(" ", "-")


@dataclass(frozen=True)
class Twin:
    """Another case, and how much of a run on it is known from a run on the first."""

    case: Case
    # Token n of this case must have the loss that token `tokens[n]` of the first has.
    tokens: Mapping[int, int]
    # The loss and every gradient must be the same, too.
    whole: bool = True
    # Not even the rounding may differ.
    exact: bool = False


@dataclass(frozen=True)
class Twins:
    """A case and others like it."""

    first: Case
    others: tuple[Twin, ...]


def twins_agree(run: Run, twins: Twins) -> str:
    """What each twin must share with the first case, it does."""
    first, *others = run(twins.first, *(twin.case for twin in twins.others))
    for twin, other in zip(twins.others, others, strict=True):
        expected = first.renumbered(twin.tokens)
        got = other.renumbered({token: token for token in twin.tokens})
        # How much each loss weighs depends on how many there are.
        keys = ["nll"] if not twin.whole else [key for key in expected if key != "weight"]
        expected, got = (trace.only(keys) for trace in (expected, got))
        found = (identical if twin.exact else agree)(expected, got)
        if found:
            return f"{found}\n  {twins.first}\n  {twin.case}"
    return ""


def runner(pool: RankPool, candidate: str, refused: Counter[str]) -> Run:
    """A candidate on real ranks; a run that fails, or does not fit together, is no answer.

    What it does not support is drawn anew, and counted by the reason that it gives.
    """

    def run(*cases: Case) -> list[Trace]:
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
    """The same case with its token ids stated, so that rows can move or change."""
    return replace(case, ids=tuple(case.ids_of(row) for row in range(len(case.rows))))


def arranged(case: Case, order: Sequence[int], **changes: Any) -> Case:
    """Row i of the new case is row `order[i]` of this one."""
    return replace(
        case,
        rows=tuple(case.rows[row] for row in order),
        ids=tuple(case.ids_of(row) for row in order),
        **changes,
    )


def tokens_of(case: Case, first: Case, origins: Mapping[int, int]) -> dict[int, int]:
    """Tokens of the rows of `case` and where they stand in `first`: row r is row `origins[r]`.

    Without the last token of each row: what comes next is another row's, and so is its loss.
    """
    return {
        case.offsets[row] + t: first.offsets[origin] + t
        for row, origin in origins.items()
        for t in range(len(case.rows[row]) - 1)
    }


def all_tokens(case: Case) -> dict[int, int]:
    """Every token of rows that stay where they are."""
    return tokens_of(case, case, {row: row for row in range(len(case.rows))})
