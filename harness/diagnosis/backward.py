"""Explain wrong gradients by what passes backward through attention.

Plain training is changed in backward alone: the gradient of queries, keys or values is multiplied
on its way back. A change explains a case if all gradients then come out as the candidate's.

Legend: T tokens of a stream with its padding, N heads, K kv heads, H head dim, n any token of the
case by its number, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import Case
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import QKV, Forward, Pass, plain_passes
from harness.diagnosis.readout import differing_gradients
from harness.trace.trace import Values

# Which of queries, keys and values a change applies to, by how the text calls them.
PARTS = {
    "queries": (True, False, False),
    "keys": (False, True, False),
    "values": (False, False, True),
    "keys and values": (False, True, True),
    "queries, keys and values": (True, True, True),
}


# By description: which of queries, keys and values change, and the factor of each head.
Changes = dict[str, tuple[tuple[bool, ...], Tensor]]


def describe_backward(wrong: Sequence[Evidence]) -> str:
    """Describe the change that explains all these cases; an empty text if there is none."""
    descriptions = list(_changes(wrong[0].case)) if wrong else []
    for evidence in wrong:
        if not descriptions:
            break
        plain = Forward(evidence.case, plain_passes(evidence.case, evidence.owner_n))
        changes = _changes(evidence.case)
        descriptions = [
            text for text in descriptions if _predicts(plain, evidence, *changes[text])
        ]
    return descriptions[0] if descriptions else ""


def _changes(case: Case) -> Changes:
    one_N1, keys_and_values = torch.ones(case.heads, 1), PARTS["keys and values"]
    changes: Changes = {}
    # If several ranks need one kv head, each has a copy.
    copies = case.sp // case.kv_heads
    if copies > 1:
        copy_N1 = torch.arange(case.heads)[:, None] // (case.heads // case.sp) % copies
        changes = {
            "copies of kv heads are averaged instead of added": (keys_and_values, one_N1 / copies),
            "of the copies of a kv head only the first counts": (keys_and_values, copy_N1 == 0),
        }
    for name, which in PARTS.items():
        through = f"what comes back through {name}"
        changes[f"nothing comes back through {name}"] = which, 0 * one_N1
        if case.sp > 1:
            changes[f"{through} is divided by sp"] = which, one_N1 / case.sp
            changes[f"{through} is multiplied by sp"] = which, one_N1 * case.sp
    return changes


def _predicts(
    plain: Forward, evidence: Evidence, which: tuple[bool, ...], factor_N1: Tensor
) -> bool:
    predicted = _gradients(plain, evidence, which, factor_N1)
    return not differing_gradients(predicted, evidence.got, evidence.case.dtype)


def _gradients(
    plain: Forward, evidence: Evidence, which: tuple[bool, ...], factor_N1: Tensor
) -> dict[str, Values]:
    case = evidence.case
    changed = [_scale_backward(stream, which, factor_N1) for stream in plain.passes]
    forward = plain.with_passes(changed)
    weight_n = torch.from_numpy(evidence.oracle["weight"].values.astype(np.float64))
    labels_nV = F.one_hot(torch.from_numpy(evidence.labels_n), case.vocab)
    probabilities_nV = forward.logits.detach().softmax(-1)
    return forward.gradients(weight_n[:, None] * (probabilities_nV - labels_nV))


def _scale_backward(plain: Pass, which: tuple[bool, ...], factor_N1: Tensor) -> Pass:
    """Multiply what comes back by a factor for each head; forward stays as it is."""

    def scale_backward(qkv: QKV) -> QKV:
        q_TNH, k_TKH, v_TKH = qkv
        of_heads = q_TNH, k_TKH[:, plain.kv_of_N], v_TKH[:, plain.kv_of_N]
        q, k, v = (
            x.detach() + factor_N1 * (x - x.detach()) if is_changed else x
            for x, is_changed in zip(of_heads, which, strict=True)
        )
        return q, k, v

    return replace(plain, change_qkv=scale_backward, kv_of_N=torch.arange(plain.case.heads))
