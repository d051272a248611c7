"""A comparison that could not have failed is not a pass."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.case import Case
from harness.compare.budget import MOST_WEAK, SLACK_THAT_SEES_HALF
from harness.compare.comparison import KeyResult
from harness.compare.shares import shares
from harness.trace import GRADIENT, Assembly, Entry, is_required
from harness.trace.trace import Tokens


def vacuity(
    case: Case, results: Sequence[KeyResult], oracle_nll: Entry, assembly: Assembly
) -> str:
    """Why this run proves nothing, or an empty text."""
    return (
        _nothing_examined(results)
        or _weak(results)
        or _elsewhere(assembly)
        or _not_parallel(case, assembly)
        or _boundary_unseen(case, oracle_nll, assembly.trace["nll"])
    )


def _nothing_examined(results: Sequence[KeyResult]) -> str:
    if any(result.elements for result in results if result.key.startswith(GRADIENT)):
        return ""
    return "not one element of a gradient was examined"


def _weak(results: Sequence[KeyResult]) -> str:
    gradients = [result for result in results if result.key.startswith(GRADIENT)]
    weak = [result.key for result in results if result.weak and is_required(result.key)]
    # A few gradients may be nothing but rounding: they are not counted, and the others tell.
    if len(weak) > MOST_WEAK * len(gradients) or not all(key.startswith(GRADIENT) for key in weak):
        names = ", ".join(weak)
        return f"plain training's own error is so large that {names} cannot be told from zero"
    finest = min(result.slack for result in gradients)
    if finest > SLACK_THAT_SEES_HALF:
        return (
            "plain training's own error is so large that no gradient can be told from half of it"
        )
    return ""


def _elsewhere(assembly: Assembly) -> str:
    if not assembly.idle:
        return ""
    ranks = ", ".join(map(str, assembly.idle))
    return f"no tensor was made on the device of rank {ranks}: the step computed elsewhere"


def _not_parallel(case: Case, assembly: Assembly) -> str:
    if case.sp == 1:
        return ""
    if not exchanged(case, assembly.collectives):
        return f"sp={case.sp} and no rank entered an all-to-all"
    nll = assembly.trace["nll"]
    for replica in range(case.dp):
        rows = assembly.local_rows[replica * case.sp : (replica + 1) * case.sp]
        if len(set(rows)) > 1:
            return f"sequence peers of replica {replica} hold {list(rows)} tokens"
        mine = case.rows[replica :: case.dp]
        tokens = sum(len(row) for row in mine)
        if rows[0] >= tokens and rows[0] not in shares(case, replica, nll):
            return f"every rank of replica {replica} computed on all {tokens} tokens"
    return ""


def exchanged(case: Case, collectives: Mapping[str, int]) -> bool:
    """Whether tokens met those of other ranks: by all-to-all, or around a ring.

    Keys and values that all ranks gather are reduced and scattered in backward; so are the
    gradients of a sharded model, which says nothing.
    """
    gathered = () if case.wrapper == "fsdp" else ("reduce_scatter",)
    return any(kind.startswith(("all_to_all", "messages", *gathered)) for kind in collectives)


def _boundary_unseen(case: Case, oracle_nll: Entry, nll: Entry) -> str:
    """Labels at shard edges are where it breaks: if the case has some, some must be judged."""
    if nll.owners is None or nll.tokens is None or len(nll.tokens) < case.tokens:
        return ""
    predicting = _predicting(case)
    at_edge = predicting[nll.owners[predicting] != nll.owners[predicting + 1]]
    judged = () if oracle_nll.tokens is None else oracle_nll.tokens
    if at_edge.size and not np.isin(at_edge, judged).any():
        return "no supervised label at a shard edge was examined"
    return ""


def _predicting(case: Case) -> Tokens:
    """Numbers of the tokens whose successor is a supervised target, from the masks alone."""
    bits = np.frombuffer("".join(row.mask for row in case.rows).encode(), np.uint8) == ord("1")
    bits[list(case.offsets[:-1])] = False
    return np.flatnonzero(bits) - 1
