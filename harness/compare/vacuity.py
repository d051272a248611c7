"""A comparison that could not have failed is not a pass."""

from collections.abc import Sequence

import numpy as np

from harness.case import Case
from harness.compare.budget import MOST_WEAK, SLACK_THAT_SEES_HALF
from harness.compare.comparison import KeyResult
from harness.compare.least_traffic import holder_of_all, least_sent
from harness.compare.token_ownership import is_cut_evenly, shares
from harness.trace import GRADIENT, Assembly, Entry, Trace, is_required
from harness.trace.trace import Tokens


def vacuity(
    case: Case,
    results: Sequence[KeyResult],
    oracle: Trace,
    assembly: Assembly,
    *,
    of_our_model: bool,
) -> str:
    """Why this run proves nothing, or an empty text."""
    return (
        _nothing_examined(results)
        or assembly.unemitted
        or _elsewhere(assembly)
        or _not_parallel(case, assembly, of_our_model=of_our_model)
        or _boundary_unseen(case, oracle["nll"], assembly.trace["nll"])
        or ("" if of_our_model else _not_emitted(case, oracle, assembly))
    )


def _not_emitted(case: Case, oracle: Trace, assembly: Assembly) -> str:
    """What the own step emits at sp 1 in every run, and here nobody did."""
    known = {*assembly.trace, *assembly.skipped}
    for key in oracle:
        if oracle[key].is_light and key not in known:
            return (
                f"{key} is emitted at sp 1, and by no rank at sp {case.sp}, so that it is not "
                "compared: emit it at both, or at neither"
            )
    return ""


def _nothing_examined(results: Sequence[KeyResult]) -> str:
    if any(result.elements for result in results if result.key.startswith(GRADIENT)):
        return ""
    return "not one element of a gradient was examined"


def swallowed(results: Sequence[KeyResult]) -> tuple[str, ...]:
    """The tensors that rounding hides, the worst first, where the others tell too little."""
    gradients = [result for result in results if result.key.startswith(GRADIENT)]
    hidden = [result for result in results if result.weak and is_required(result.key)]
    # A few gradients may be nothing but rounding: they are not counted, and the others tell.
    if len(hidden) <= MOST_WEAK * len(gradients) and all(each in gradients for each in hidden):
        finest = min(result.slack for result in gradients)
        # None of them can be told from half of it.
        hidden = gradients if finest > SLACK_THAT_SEES_HALF else []
    return tuple(each.key for each in sorted(hidden, key=lambda each: -each.slack))


def _elsewhere(assembly: Assembly) -> str:
    if not assembly.idle:
        return ""
    ranks = ", ".join(map(str, assembly.idle))
    return f"no tensor was made on the device of rank {ranks}: the step computed elsewhere"


def _not_parallel(case: Case, assembly: Assembly, *, of_our_model: bool) -> str:
    if case.sp == 1:
        return ""
    nll = assembly.trace["nll"]
    for replica in range(case.dp):
        peers = slice(replica * case.sp, (replica + 1) * case.sp)
        tokens = sum(len(row) for row in case.rows[replica :: case.dp])
        fewest = min(assembly.local_rows[peers])
        explained = fewest < tokens or fewest in shares(case, replica, nll)
        if not explained and not is_cut_evenly(case, replica, nll, fewest):
            return f"every rank of replica {replica} computed on all {tokens} tokens"
        holder = holder_of_all(case, replica, nll)
        if holder is not None:
            return f"rank {holder} of replica {replica} holds all {tokens} tokens"
        sent = sum(assembly.sent[peers])
        least = least_sent(case, replica, nll, of_our_model=of_our_model)
        if sent < least:
            return (
                f"the ranks of replica {replica} sent {sent} bytes, and attention over the "
                f"rows that are cut between them needs {least}: each computes what others hold, "
                "or flat tensors, such as parameters are sent in, or something that "
                "torch.distributed does not know carried it; then emit 'sent'"
            )
    return ""


def _boundary_unseen(case: Case, oracle_nll: Entry, nll: Entry) -> str:
    """Labels at shard edges are where it breaks: if the case has some, some must be judged."""
    if len(_at_edges(case, nll)) and not at_edge(case, oracle_nll, nll):
        return "no supervised label at a shard edge was examined"
    return ""


def at_edge(case: Case, oracle_nll: Entry, nll: Entry) -> int | None:
    """How many targets were judged whose label is on another rank; nothing if nobody can say."""
    if nll.owners is None or nll.tokens is None or len(nll.tokens) < case.tokens:
        return None
    judged = () if oracle_nll.tokens is None else oracle_nll.tokens
    return int(np.isin(_at_edges(case, nll), judged).sum())


def _at_edges(case: Case, nll: Entry) -> Tokens:
    """The tokens that predict a target and whose label is on another rank."""
    if nll.owners is None or nll.tokens is None or len(nll.tokens) < case.tokens:
        return np.empty(0, np.int64)
    tokens = predicting(case)
    edges: Tokens = tokens[nll.owners[tokens] != nll.owners[tokens + 1]]
    return edges


def predicting(case: Case) -> Tokens:
    """Numbers of the tokens whose successor is a supervised target, from the masks alone."""
    bits = np.frombuffer("".join(row.mask for row in case.rows).encode(), np.uint8) == ord("1")
    bits[list(case.offsets[:-1])] = False
    return np.flatnonzero(bits) - 1
