"""What comes back through attention too weakly, too strongly or not at all.

Plain training is changed in backward alone: the gradient of queries, keys or values is multiplied
on its way back. All gradients must then come out as they were seen.

Legend: T tokens of a stream with its padding, N heads, H head dim, n any token of the case by its
number, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import Case
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import Forward, Heads, Pass, passes
from harness.diagnosis.readout import unlike
from harness.trace.trace import Values

PARTS = {
    "queries": (True, False, False),
    "keys": (False, True, False),
    "values": (False, False, True),
    "keys and values": (False, True, True),
    "queries, keys and values": (True, True, True),
}


# By what is said of it, which of the three it is and by how much that of each head is multiplied.
Meanings = dict[str, tuple[tuple[bool, ...], Tensor]]


def told_by_backward(wrong: Sequence[Evidence]) -> str:
    """What holds on all of these cases; an empty text if nothing does."""
    left = list(_meanings(wrong[0].case)) if wrong else []
    for evidence in wrong:
        if not left:
            break
        plain = Forward(evidence.case, passes(evidence.case, evidence.owner_n))
        meanings = _meanings(evidence.case)
        left = [said for said in left if _predicts(plain, evidence, *meanings[said])]
    return left[0] if left else ""


def _meanings(case: Case) -> Meanings:
    one_N1, keys_and_values = torch.ones(case.heads, 1), PARTS["keys and values"]
    meanings: Meanings = {}
    # If several ranks need one kv head, each has a copy.
    copies = case.sp // case.kv_heads
    if copies > 1:
        copy_N1 = torch.arange(case.heads)[:, None] // (case.heads // case.sp) % copies
        meanings = {
            "copies of kv heads are averaged instead of added": (keys_and_values, one_N1 / copies),
            "of the copies of a kv head only the first counts": (keys_and_values, copy_N1 == 0),
        }
    for name, which in PARTS.items():
        through = f"what comes back through {name}"
        meanings[f"nothing comes back through {name}"] = which, 0 * one_N1
        if case.sp > 1:
            meanings[f"{through} is divided by sp"] = which, one_N1 / case.sp
            meanings[f"{through} is multiplied by sp"] = which, one_N1 * case.sp
    return meanings


def _predicts(
    plain: Forward, evidence: Evidence, which: tuple[bool, ...], factor_N1: Tensor
) -> bool:
    found = _gradients(plain, evidence, which, factor_N1)
    return not unlike(found, evidence.got, evidence.case.dtype)


def _gradients(
    plain: Forward, evidence: Evidence, which: tuple[bool, ...], factor_N1: Tensor
) -> dict[str, Values]:
    case = evidence.case
    forward = plain.changed([_changed(each, which, factor_N1) for each in plain.passes])
    weight_n = torch.from_numpy(evidence.oracle["weight"].values.astype(np.float64))
    labels_nV = F.one_hot(torch.from_numpy(evidence.labels_n), case.vocab)
    probabilities_nV = forward.logits.detach().softmax(-1)
    return forward.gradients(weight_n[:, None] * (probabilities_nV - labels_nV))


def _changed(plain: Pass, which: tuple[bool, ...], factor_N1: Tensor) -> Pass:
    def before(heads: Heads) -> Heads:
        q_TNH, k_TKH, v_TKH = heads
        of_heads = q_TNH, k_TKH[:, plain.kv_of_N], v_TKH[:, plain.kv_of_N]
        q, k, v = (
            x.detach() + factor_N1 * (x - x.detach()) if changed else x
            for x, changed in zip(of_heads, which, strict=True)
        )
        return q, k, v

    return replace(plain, before=before, kv_of_N=torch.arange(plain.case.heads))
