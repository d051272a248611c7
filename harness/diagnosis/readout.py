"""Compute the loss that was trained on from the gradients.

All gradients are linear in the gradient of the logits. The head's gradient alone determines it, a
row for each token, as long as there are no more tokens than the hidden state is wide. And the row
of a token is its weight in the loss times (its probabilities - its label). So the weight and the
label of each token are known even if the candidate emits neither. All other gradients must follow
from them; if they do not, backward is wrong.

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
    """The weights and labels that the gradients imply."""

    weight_n: Values
    label_n: Tokens
    # Whether a weight and a label explain the gradient of each token's logits.
    has_labels: bool
    # The gradients that do not follow from the weights and labels, in the order of backward.
    unexplained: tuple[str, ...]


def least_size(dtype: Dtype) -> float:
    """Return the least size, as a share of the largest gradient, by which errors are measured.

    A gradient that cancels to zero has the rounding errors of the terms that cancelled, and in a
    shorter format these are larger.
    """
    return float(CLEAN[dtype] ** 0.5)


def differing_gradients(
    predicted: Mapping[str, Values], got: Trace, dtype: Dtype
) -> tuple[str, ...]:
    """Return the keys whose gradients differ from the predicted ones."""
    least = least_size(dtype) * max(float(np.abs(x).max()) for x in predicted.values())
    return tuple(
        key
        for key in got
        if key in predicted and not alike(predicted[key], got[key].values, dtype, least).all()
    )


def read_loss(forward: Forward, got: Trace, label_n: Tokens) -> Reading | None:
    """Compute weights and labels; None if the head's gradient does not determine them.

    A token without a weight gets its label from `label_n`.
    """
    x_nD, head = forward.hidden.detach(), got.get(f"{GRADIENT}head")
    if head is None or not np.isfinite(head.values).all():
        return None
    if torch.linalg.matrix_rank(x_nD, rtol=CLEAN[forward.case.dtype]) < len(x_nD):
        return None
    of_head_VD = torch.from_numpy(head.values.astype(np.float64))
    of_logits_nV = torch.linalg.lstsq(x_nD.mT, of_head_VD.mT).solution
    weight_n, found_n, has_labels = _weights_and_labels(forward, of_logits_nV, label_n)
    unexplained = differing_gradients(forward.gradients(of_logits_nV), got, forward.case.dtype)
    return Reading(weight_n, found_n, has_labels, unexplained)


def _weights_and_labels(
    forward: Forward, of_logits_nV: torch.Tensor, label_n: Tokens
) -> tuple[Values, Tokens, bool]:
    """Fit a weight for every label, and take for each token the label that leaves the least."""
    shape_nVV = forward.logits.detach().softmax(-1)[:, None] - torch.eye(forward.case.vocab)
    dots_nV = torch.einsum("nv,nyv->ny", of_logits_nV, shape_nVV)
    weight_nV = dots_nV / shape_nVV.square().sum(-1)
    left_nV = (of_logits_nV[:, None] - weight_nV[:, :, None] * shape_nVV).norm(dim=-1)
    # Anything smaller is rounding.
    least = CLEAN[forward.case.dtype] * of_logits_nV.norm(dim=-1).max()
    counts_n = (of_logits_nV.norm(dim=-1) > least).numpy()
    best_n = left_nV.argmin(-1)
    at_n = torch.arange(len(best_n))
    weight_n = np.where(counts_n, weight_nV[at_n, best_n].numpy(), 0.0)
    has_labels = bool((left_nV[at_n, best_n] <= least).all())
    return weight_n, np.where(counts_n, best_n.numpy(), label_n), has_labels


def looks_of_loss(evidence: Evidence, reading: Reading) -> list[Look]:
    """Return every name that fits the labels and weights of a reading; none if they are right."""
    counted = np.flatnonzero(reading.weight_n)
    if (reading.label_n != evidence.labels_n).any():
        return list(looks_of_labels(evidence, counted, reading.label_n[counted]))
    expected_n = evidence.oracle["weight"].values.astype(np.float64)
    if evidence.alike(expected_n, reading.weight_n).all():
        return []
    return list(looks_of_weights(evidence, expected_n, reading.weight_n))
