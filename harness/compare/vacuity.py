"""Finds runs that could not have failed, so that they are not counted as passes.

A run is vacuous if no gradient was examined, if its ranks did not share the sequence, or if no
label across a shard edge was judged.
"""

from collections.abc import Sequence

import numpy as np

from harness.case import Case, Row
from harness.compare.budget import MOST_WEAK, SLACK_THAT_SEES_HALF
from harness.compare.least_traffic import holder_of_all, least_sent
from harness.compare.measurement import KeyResult
from harness.compare.token_ownership import explained_shares, is_cut_evenly
from harness.trace import FROZEN, GRADIENT, Assembly, Entry, Trace, is_required
from harness.trace.trace import Tokens


def vacuity(
    case: Case,
    results: Sequence[KeyResult],
    oracle: Trace,
    assembly: Assembly,
    *,
    of_our_model: bool,
) -> str:
    """Return why this run proves nothing, or an empty text."""
    return (
        _nothing_examined(results)
        or assembly.unemitted
        or _computed_elsewhere(assembly)
        or _not_parallel(case, assembly, of_our_model=of_our_model)
        or _edges_unjudged(case, oracle.get("nll"), assembly.trace.losses)
        or ("" if of_our_model else _emitted_at_sp_1_only(case, oracle, assembly))
    )


def _emitted_at_sp_1_only(case: Case, oracle: Trace, assembly: Assembly) -> str:
    emitted = {*assembly.trace, *assembly.skipped}
    for key in oracle:
        is_tensor = oracle[key].is_light and not key.startswith(FROZEN)
        if is_tensor and key not in emitted:
            return (
                f"{key} is emitted at sp 1, and by no rank at sp {case.sp}, so that it is not "
                "compared: emit it at both, or at neither"
            )
    return ""


def _nothing_examined(results: Sequence[KeyResult]) -> str:
    if any(result.elements for result in results if result.key.startswith(GRADIENT)):
        return ""
    return "not one element of a gradient was examined"


def hidden_by_rounding(results: Sequence[KeyResult]) -> tuple[str, ...]:
    """Return the tensors that rounding hides, worst first, if the case cannot be judged.

    Returns nothing if enough other tensors can be judged.
    """
    gradients = [result for result in results if result.key.startswith(GRADIENT)]
    hidden = [result for result in results if result.is_weak and is_required(result.key)]
    if len(hidden) <= MOST_WEAK * len(gradients) and all(result in gradients for result in hidden):
        finest = min(result.slack for result in gradients)
        # If no gradient would show that it is halved, all of them count as hidden.
        hidden = gradients if finest > SLACK_THAT_SEES_HALF else []
    return tuple(result.key for result in sorted(hidden, key=lambda result: -result.slack))


def _computed_elsewhere(assembly: Assembly) -> str:
    if not assembly.idle:
        return ""
    ranks = ", ".join(map(str, assembly.idle))
    return f"no tensor was made on the device of rank {ranks}: the step computed elsewhere"


def _not_parallel(case: Case, assembly: Assembly, *, of_our_model: bool) -> str:
    if case.sp == 1:
        return ""
    if "nll" not in assembly.trace:
        return _all_embedded(case, assembly)
    nll = assembly.trace["nll"]
    for replica in range(case.dp):
        peers = slice(replica * case.sp, (replica + 1) * case.sp)
        tokens = sum(len(row) for row in case.rows[replica :: case.dp])
        fewest = min(assembly.local_rows[peers])
        explained = fewest < tokens or fewest in explained_shares(case, replica, nll)
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


def _all_embedded(case: Case, assembly: Assembly) -> str:
    """Return a reason if each rank embedded its replica's whole batch and sent its peers nothing.

    This is all that can be asked of a step that does not show the losses of tokens.
    """
    for replica in range(case.dp):
        peers = slice(replica * case.sp, (replica + 1) * case.sp)
        table = _largest_table(case, case.rows[replica :: case.dp])
        fewest = min(assembly.embedded[peers], default=0)
        if fewest >= table and not any(assembly.sent[peers]):
            return (
                f"every rank of replica {replica} embedded all {fewest} tokens of its batch, and "
                "sent its peers nothing"
            )
    return ""


def _largest_table(case: Case, rows: Sequence[Row]) -> int:
    """Return how many tokens the largest micro-batch of these rows has, padding included."""
    parts = np.array_split(np.arange(len(rows)), case.micro_batches)
    return max(len(part) * max(len(rows[number]) for number in part) for part in parts)


def _edges_unjudged(case: Case, oracle_nll: Entry | None, nll: Entry) -> str:
    """Return a reason if the case has labels across shard edges and none of them was judged."""
    if len(_edge_tokens(case, nll)) and not count_edge_targets(case, oracle_nll, nll):
        return "no supervised label at a shard edge was examined"
    return ""


def count_edge_targets(case: Case, oracle_nll: Entry | None, nll: Entry) -> int | None:
    """Return how many targets were judged whose label is on another rank than their loss.

    Returns None if not every token has an owner. A reference without losses of tokens judges all
    of them, by the loss and the gradients.
    """
    if nll.owners is None or nll.tokens is None or len(nll.tokens) < case.tokens:
        return None
    edges = _edge_tokens(case, nll)
    if oracle_nll is None:
        return len(edges)
    judged = () if oracle_nll.tokens is None else oracle_nll.tokens
    return int(np.isin(edges, judged).sum())


def _edge_tokens(case: Case, nll: Entry) -> Tokens:
    """Return the tokens that predict a target and whose label is on another rank."""
    if nll.owners is None or nll.tokens is None or len(nll.tokens) < case.tokens:
        return np.empty(0, np.int64)
    tokens = predicting_tokens(case)
    edges: Tokens = tokens[nll.owners[tokens] != nll.owners[tokens + 1]]
    return edges


def predicting_tokens(case: Case) -> Tokens:
    """Return the numbers of the tokens that predict a target: the next token is supervised."""
    bits = np.frombuffer("".join(row.mask for row in case.rows).encode(), np.uint8) == ord("1")
    bits[list(case.offsets[:-1])] = False
    return np.flatnonzero(bits) - 1
