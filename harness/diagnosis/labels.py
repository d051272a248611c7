"""Labels that are not the next token."""

from collections.abc import Iterator

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence
from harness.trace.trace import Tokens, Values

NO_LABEL = -1


def looks_of_labels(evidence: Evidence, tokens: Tokens, got: Values) -> Iterator[Look]:
    """What labels `got` of the predicting `tokens` may have to do with the ids on this case.

    What says the most comes first.
    """
    expected = evidence.moved(evidence.ids_n, 1, fill=-1)[tokens]
    wrong, edge = got != expected, evidence.edge_n[tokens]
    count = f"{int(wrong.sum())} of {len(tokens)} labels are wrong"
    rolled = got == evidence.next_in_shard(evidence.ids_n)[tokens]
    # Where a shard ends in padding, that is what comes round.
    padded = evidence.before_padding_n[tokens] & (got == evidence.case.pad_id)
    if (rolled | padded).all():
        why = f"{count}: at shard edges they are the shard's own first token"
        how = "the last label of a shard is the shard's own first token"
        yield Look("label-rolled-locally", why, how=how)
    for by, said in (
        (0, "the token itself"),
        (2, "the one after the next"),
        (-1, "the one before"),
    ):
        other = evidence.moved(evidence.ids_n, by, fill=-1)[tokens]
        inside = (other >= 0) & ~edge
        if np.array_equal(got[inside], other[inside]):
            shown = bool((wrong & inside).any())
            how = f"a label is {said}"
            yield Look("label-shifted", f"{count}: {how}", how=how, shown=shown)
    if (edge | ~wrong).all():
        values = ", ".join("none" if x == NO_LABEL else str(x) for x in np.unique(got[wrong]))
        why = f"{count}, all of them at shard edges; they are {values}"
        yield Look("label-lost-at-edge", why, how="all wrong labels are at shard edges")
    yield Look("label-replaced", f"{count}, and no shift explains them")


def labels_from_losses(evidence: Evidence) -> tuple[Tokens, Tokens] | None:
    """The labels that losses belong to, if the oracle's logits tell, and not all are right.

    A candidate need not show its labels; -loss must be some id's log-probability.
    """
    logits = evidence.oracle.get("logits")
    nll, oracle = evidence.got["nll"], evidence.oracle["nll"]
    if logits is None or logits.values.ndim != 2 or oracle.tokens is None or nll.tokens is None:
        return None
    tokens = np.intersect1d(oracle.tokens, nll.tokens)
    losses = evidence.spread(nll.values, nll.tokens, np.nan)[tokens]
    wide = logits.values[tokens].astype(np.float64)
    top = wide.max(-1, keepdims=True)
    of_ids = top + np.log(np.exp(wide - top).sum(-1, keepdims=True)) - wide
    fits = evidence.alike(of_ids, np.broadcast_to(losses[:, None], of_ids.shape))
    if not (fits.any(-1) | (losses == 0)).all():
        return None
    expected = evidence.moved(evidence.ids_n, 1, fill=0)[tokens]
    right = fits[np.arange(len(tokens)), expected]
    if right.all():
        # Then they explain nothing.
        return None
    got = np.where(right, expected, fits.argmax(-1))
    # What is ignored loses nothing.
    return tokens, np.where(fits.any(-1), got, NO_LABEL)
