"""Name labels that are not the next token."""

from collections.abc import Iterator

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence
from harness.trace.trace import Tokens, Values

NO_LABEL = -1


def looks_of_labels(evidence: Evidence, tokens: Tokens, got: Values) -> Iterator[Look]:
    """Yield every name that fits the labels `got` of `tokens` on this case, the best first."""
    expected = evidence.moved(evidence.ids_n, 1, fill=-1)[tokens]
    wrong, edge = got != expected, evidence.edge_n[tokens]
    count = f"{int(wrong.sum())} of {len(tokens)} labels are wrong"
    is_rolled = got == evidence.next_in_shard(evidence.ids_n)[tokens]
    # If a shard ends in padding, rolling it brings the pad id to its last token.
    is_padded = evidence.before_padding_n[tokens] & (got == evidence.case.pad_id)
    if (is_rolled | is_padded).all():
        why = f"{count}: at shard edges they are the shard's own first token"
        how = "the last label of a shard is the shard's own first token"
        yield Look("label-rolled-locally", why, how=how)
    for by, description in (
        (0, "the token itself"),
        (2, "the one after the next"),
        (-1, "the one before"),
    ):
        other = evidence.moved(evidence.ids_n, by, fill=-1)[tokens]
        inside = (other >= 0) & ~edge
        if np.array_equal(got[inside], other[inside]):
            is_shown = bool((wrong & inside).any())
            how = f"a label is {description}"
            yield Look("label-shifted", f"{count}: {how}", how=how, shown=is_shown)
    if (edge | ~wrong).all():
        values = ", ".join("none" if x == NO_LABEL else str(x) for x in np.unique(got[wrong]))
        why = f"{count}, all of them at shard edges; they are {values}"
        yield Look("label-lost-at-edge", why, how="all wrong labels are at shard edges")
    yield Look("label-replaced", f"{count}, and no shift explains them")


def labels_from_losses(evidence: Evidence) -> tuple[Tokens, Tokens] | None:
    """Find the labels that the losses belong to: each is the -log-probability of some id.

    Return tokens and their labels. Return None if the oracle's logits do not explain all losses,
    or if all labels are right.
    """
    logits = evidence.oracle.get("logits")
    nll, oracle = evidence.got["nll"], evidence.oracle["nll"]
    if logits is None or logits.values.ndim != 2 or oracle.tokens is None or nll.tokens is None:
        return None
    tokens = np.intersect1d(oracle.tokens, nll.tokens)
    losses = evidence.scatter(nll.values, nll.tokens, np.nan)[tokens]
    wide = logits.values[tokens].astype(np.float64)
    top = wide.max(-1, keepdims=True)
    nll_by_label = top + np.log(np.exp(wide - top).sum(-1, keepdims=True)) - wide
    fits = evidence.alike(nll_by_label, np.broadcast_to(losses[:, None], nll_by_label.shape))
    if not (fits.any(-1) | (losses == 0)).all():
        return None
    expected = evidence.moved(evidence.ids_n, 1, fill=0)[tokens]
    right = fits[np.arange(len(tokens)), expected]
    if right.all():
        return None
    got = np.where(right, expected, fits.argmax(-1))
    # An ignored token has a loss of zero and no label.
    return tokens, np.where(fits.any(-1), got, NO_LABEL)
