"""The loss that was trained on, read off the gradients.

Gradients are linear in those of the logits. The head's alone tells these, one for each token, as
long as there are no more tokens than the hidden state is wide; and a token's own is its weight in
the loss times (its probabilities - its label). So each token's weight and label are known though
nobody shows them. All other gradients must follow: where they do not, backward is wrong.

Legend: n any token of the case by its number, V vocabulary, D hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from harness.case import Dtype
from harness.compare import Look, alike
from harness.compare.budget import CLEAN
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import Forward
from harness.diagnosis.labels import looks_of_labels
from harness.diagnosis.weights import looks_of_weights
from harness.trace import GRADIENT, Trace
from harness.trace.trace import Tokens, Values


@dataclass(frozen=True, slots=True)
class Reading:
    """What the gradients say."""

    weight_n: Values
    label_n: Tokens
    # Whether each token's share has the form that a weight and a label give it.
    is_of_labels: bool
    # In the order of backward, the gradients that do not follow from it.
    unexplained: tuple[str, ...]


def small(dtype: Dtype) -> float:
    """By this share of the largest a gradient is measured that may be zero but for rounding.

    Its rounding is that of what cancelled in it, which the shorter format sees sooner.
    """
    return float(CLEAN[dtype] ** 0.5)


def unlike(predicted: Mapping[str, Values], got: Trace, dtype: Dtype) -> tuple[str, ...]:
    """Which gradients came out otherwise than this predicts."""
    least = small(dtype) * max(float(np.abs(x).max()) for x in predicted.values())
    return tuple(
        key
        for key in got
        if key in predicted and not alike(predicted[key], got[key].values, dtype, least).all()
    )


def read_loss(forward: Forward, got: Trace, label_n: Tokens) -> Reading | None:
    """Weights and labels, `label_n` where a token has none; nothing where they cannot be told."""
    x_nD, head = forward.hidden.detach(), got.get(f"{GRADIENT}head")
    if head is None or not np.isfinite(head.values).all():
        return None
    if torch.linalg.matrix_rank(x_nD, rtol=CLEAN[forward.case.dtype]) < len(x_nD):
        return None
    of_head_VD = torch.from_numpy(head.values.astype(np.float64))
    of_logits_nV = torch.linalg.lstsq(x_nD.mT, of_head_VD.mT).solution
    weight_n, found_n, is_of_labels = _weights(forward, of_logits_nV, label_n)
    unexplained = unlike(forward.gradients(of_logits_nV), got, forward.case.dtype)
    return Reading(weight_n, found_n, is_of_labels, unexplained)


def _weights(
    forward: Forward, of_logits_nV: torch.Tensor, label_n: Tokens
) -> tuple[Values, Tokens, bool]:
    """By each label in turn, how much it would have to weigh, and what would be left then."""
    shape_nVV = forward.logits.detach().softmax(-1)[:, None] - torch.eye(forward.case.vocab)
    dots_nV = torch.einsum("nv,nyv->ny", of_logits_nV, shape_nVV)
    weight_nV = dots_nV / shape_nVV.square().sum(-1)
    left_nV = (of_logits_nV[:, None] - weight_nV[:, :, None] * shape_nVV).norm(dim=-1)
    # What is smaller is rounding.
    least = CLEAN[forward.case.dtype] * of_logits_nV.norm(dim=-1).max()
    counts_n = (of_logits_nV.norm(dim=-1) > least).numpy()
    best_n = left_nV.argmin(-1)
    at_n = torch.arange(len(best_n))
    weight_n = np.where(counts_n, weight_nV[at_n, best_n].numpy(), 0.0)
    is_of_labels = bool((left_nV[at_n, best_n] <= least).all())
    return weight_n, np.where(counts_n, best_n.numpy(), label_n), is_of_labels


def looks_of_loss(evidence: Evidence, reading: Reading) -> list[Look]:
    """What labels and weights may be called that the gradients tell; nothing if they are right."""
    counted = np.flatnonzero(reading.weight_n)
    if (reading.label_n != evidence.labels_n).any():
        return list(looks_of_labels(evidence, counted, reading.label_n[counted]))
    expected_n = evidence.oracle["weight"].values.astype(np.float64)
    if evidence.alike(expected_n, reading.weight_n).all():
        return []
    return list(looks_of_weights(evidence, expected_n, reading.weight_n))
