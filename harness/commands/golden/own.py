"""Compute own goldens: what a candidate's recipe, or its step at sp 1, gives in fp64 on ranks."""

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.against import PLAIN, RECIPE
from harness.commands.golden.options import OwnStep
from harness.commands.ranks import open_pool
from harness.commands.values import UsageError
from harness.engine.no_ranks import NoRanks

if TYPE_CHECKING:
    from pathlib import Path

    from harness.against import Against
    from harness.golden import Golden, Vector
    from harness.ranks.pool import RankPool


def adopt(options: OwnStep, goldens: "dict[str, Golden]") -> "dict[str, Golden]":
    """Rename the candidate of all goldens to the one of the options, if no golden is of that one.

    It may be the same step in another file, or its next version.
    """
    from harness.golden.own import candidate_of, is_own, with_candidate

    owners, typed = {*map(candidate_of, goldens.values())}, options.candidate
    if len(typed) == 1 and typed[0] not in owners and all(map(is_own, goldens.values())):
        return with_candidate(goldens, typed[0])
    return goldens


def find_owners(options: OwnStep, goldens: "dict[str, Golden]") -> list[str]:
    """Return the owners of the goldens: the candidates whose numbers they hold.

    Raise `BadInput` if the code of an owner may not run, or if every golden has an owner and the
    options name a candidate that is none of them.
    """
    from harness.candidates.registry import require_trusted, require_trusted_reference
    from harness.golden.own import against_of, candidate_of

    for name, golden in goldens.items():
        require_trusted_reference(against_of(golden), f"{options.store}: {name}", options.against)
    owner_of = {name: candidate_of(golden) for name, golden in goldens.items()}
    typed = options.candidate
    owners = {
        require_trusted(owner, f"{options.store}: {name}", typed): None
        for name, owner in owner_of.items()
        if owner
    }
    unneeded = [candidate for candidate in typed if candidate not in owners]
    if unneeded and all(owner_of.values()):
        raise UsageError(
            f"--candidate={unneeded[0]}: the goldens in {options.store} hold what "
            f"{', '.join(owners)} computes, and are for no other step"
        )
    return list(owners)


def recompute_own(
    options: OwnStep, goldens: "dict[str, Golden]", reason: str = ""
) -> "dict[str, Golden]":
    """Compute the goldens of own steps again; leave out those of plain training."""
    from harness.golden.own import against_of, candidate_of, is_own

    own = {name: golden for name, golden in goldens.items() if is_own(golden)}
    if not own:
        return {}
    candidates = find_owners(options, goldens)
    ranks = options.ranks or max(golden.vector.case.ranks for golden in own.values())
    with open_pool(options, ranks, candidates) as pool:
        return {
            name: make_own(
                golden.vector,
                candidate_of(golden),
                against_of(golden),
                pool,
                options.store,
                reason,
            )
            for name, golden in own.items()
        }


def own_against(candidate: str, pool: "RankPool", against: "Against") -> "Against":
    """Return what a candidate's own golden is of; raise `UsageError` if that was not asked for."""
    from harness.candidates import locate

    has_recipe = pool.has_recipe(locate(candidate))
    if has_recipe and against != PLAIN:
        raise UsageError(
            f"--against={against}: the candidate has a recipe, whose plain training the golden is "
            "of; leave it out"
        )
    if not has_recipe and against == PLAIN:
        raise UsageError(
            f"--against=plain: {candidate} has no recipe; use `--against self` for a golden of "
            "its own step, and leave --candidate out for one of plain training"
        )
    return RECIPE if has_recipe else against


def make_own(
    vector: "Vector",
    candidate: str,
    against: "Against",
    pool: "RankPool",
    store: "Path",
    reason: str,
) -> "Golden":
    """Return a golden of what a candidate's own reference computes in fp64.

    Raise `UsageError` if the candidate does not support the case, `NoRanks` if its ranks fail.
    """
    from harness.candidates import locate
    from harness.compare import fault_comparison
    from harness.golden.own import make
    from harness.golden.provenance import commit, fingerprint
    from harness.judge import Job
    from harness.judge.stages import own_reference
    from harness.report import explain
    from harness.trace import Fault, Unsupported

    outcome = own_reference(Job(vector.case, locate(candidate), against), pool)
    if isinstance(outcome, Unsupported):
        raise UsageError(f"case={vector.case}: {candidate} does not support it: {outcome.reason}")
    if isinstance(outcome, Fault):
        comparison = replace(fault_comparison(vector.case, candidate, outcome), against=against)
        raise NoRanks(explain(comparison), outcome.summary)
    made, checked_out = fingerprint(pool.place), commit(store)
    return make(vector, outcome, candidate, against, made, checked_out, reason)
