"""Goldens of a candidate's own step: ranks have to be asked for what they should hold."""

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.against import ITSELF
from harness.commands.golden.options import Asked
from harness.commands.ranks import open_pool
from harness.commands.values import UsageError
from harness.engine.no_ranks import NoRanks

if TYPE_CHECKING:
    from pathlib import Path

    from harness.golden import Golden, Vector
    from harness.ranks.pool import RankPool

AGAIN = ("--against", ITSELF)


def taken_over(options: Asked, goldens: "dict[str, Golden]") -> "dict[str, Golden]":
    """Hold goldens of an own step against the one candidate that is named instead.

    It may be the same step in another file, or its next version.
    """
    from harness.golden.own import adopted, candidate_of, is_own

    theirs, typed = {*map(candidate_of, goldens.values())}, options.candidate
    if len(typed) == 1 and typed[0] not in theirs and all(map(is_own, goldens.values())):
        return adopted(goldens, typed[0])
    return goldens


def whose(options: Asked, goldens: "dict[str, Golden]") -> list[str]:
    """The candidates whose numbers these hold, each of which may be run.

    Where all are somebody's, nobody else is asked: who was named for nothing is told so.
    """
    from harness.candidates.registry import vouched_for
    from harness.golden.own import candidate_of

    named = {name: candidate_of(golden) for name, golden in goldens.items()}
    typed = options.candidate
    theirs = {
        vouched_for(candidate, f"{options.store}: {name}", typed): None
        for name, candidate in named.items()
        if candidate
    }
    unasked = [candidate for candidate in typed if candidate not in theirs]
    if unasked and all(named.values()):
        raise UsageError(
            f"--candidate={unasked[0]}: the goldens in {options.store} hold what "
            f"{', '.join(theirs)} computes, and are for nobody else"
        )
    return list(theirs)


def made_anew(
    options: Asked, goldens: "dict[str, Golden]", reason: str = ""
) -> "dict[str, Golden]":
    """Compute the goldens of own steps anew; leave out those of plain training."""
    from harness.golden.own import candidate_of, is_own

    theirs = {name: golden for name, golden in goldens.items() if is_own(golden)}
    if not theirs:
        return {}
    candidates = whose(options, goldens)
    ranks = options.ranks or max(golden.vector.case.ranks for golden in theirs.values())
    with open_pool(options, ranks, candidates) as pool:
        return {
            name: own_golden(golden.vector, candidate_of(golden), pool, options.store, reason)
            for name, golden in theirs.items()
        }


def own_golden(
    vector: "Vector", candidate: str, pool: "RankPool", store: "Path", reason: str
) -> "Golden":
    """A golden of what a candidate's own step computes at sp 1 in fp64."""
    from harness.candidates import locate
    from harness.compare import faulted
    from harness.golden.own import make
    from harness.golden.provenance import commit, fingerprint
    from harness.judge import Job
    from harness.judge.stages import reference_at_sp_1
    from harness.report import explain
    from harness.trace import Fault, Unsupported

    found = reference_at_sp_1(Job(vector.case, locate(candidate)), pool)
    if isinstance(found, Unsupported):
        raise UsageError(f"case={vector.case}: {candidate} does not support it: {found.reason}")
    if isinstance(found, Fault):
        told = replace(faulted(vector.case, candidate, found), against=ITSELF, options=AGAIN)
        raise NoRanks(explain(told), found.summary)
    made, checked_out = fingerprint(pool.place), commit(store)
    return make(vector, found, candidate, made, checked_out, reason)
