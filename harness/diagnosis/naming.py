"""The root of a failure, by the first tensor that is wrong, and then what does not follow from it.

Nothing here knows any candidate: everything is told by tensors.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.compare import Comparison, Look
from harness.diagnosis.attention import Heads, name_attention
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.gradients import COARSE, is_coarse, name_gradients
from harness.diagnosis.inputs import name_ids, name_positions, positions_from_rotation
from harness.diagnosis.labels import labels_from_losses, name_labels
from harness.diagnosis.weights import name_weights
from harness.trace import GRADIENT, Fault, Kind, Misfit, MisfitKind, Trace
from harness.trace.trace import Tokens, Values

BY_KIND = {
    Kind.HUNG: "collective-mismatch",
    Kind.OUT_OF_STEP: "collective-mismatch",
    Kind.RAISED: "crashed",
    Kind.DIED: "crashed",
    Kind.FRAGMENT: "crashed",
    Kind.VACUOUS: "vacuous",
}


def name_fault(fault: Fault) -> Look:
    """A run without a trace."""
    return Look(BY_KIND.get(fault.kind, "unclassified"), "")


def name_divergence(comparison: Comparison, oracle: Trace, got: Trace) -> tuple[Look, ...]:
    """Of a traced run that diverged: the root first, then what it does not explain."""
    evidence = Evidence(comparison, oracle, got)
    looks = [*_whole(evidence), *_first(evidence), *_reported(evidence)]
    if not looks:
        looks = [Look("unclassified", f"first wrong: {(evidence.wrong or ['nothing'])[0]}")]
    return tuple({look.name: look for look in reversed(looks)}.values())[::-1]


def _whole(evidence: Evidence) -> list[Look]:
    """Tokens that nobody or several ranks computed."""
    looks: list[Look] = []
    comparison = evidence.comparison
    twice = _misfit(comparison, MisfitKind.TWICE)
    if twice and comparison.silent:
        looks.append(Look("vacuous", "every peer computes all tokens, and sends nothing"))
    elif twice:
        looks.append(Look("token-owned-twice", f"{len(twice.tokens)} tokens, in {twice.key}"))
    lost = _misfit(comparison, MisfitKind.LOST)
    if lost:
        looks.append(Look("token-lost", f"{len(lost.tokens)} tokens, from {lost.key} on"))
    return looks


def _first(evidence: Evidence) -> list[Look]:
    """What the first wrong tensor looks like."""
    # A loss comes after all tokens and before the gradients: `_reported` looks at both.
    if not evidence.wrong or evidence.wrong[0] == "loss":
        return []
    key = evidence.wrong[0]
    expected, got = evidence.oracle[key], evidence.got[key]
    if not np.isfinite(got.values).all():
        return [Look("non-finite", f"first in {key}")]
    if key.startswith(GRADIENT):
        return [name_gradients(evidence)]
    if got.tokens is None or expected.tokens is None:
        return []
    tensor = Tensor(
        key=key,
        tokens=expected.tokens,
        expected_n=evidence.spread(expected.values, expected.tokens, 0),
        got_n=evidence.spread(got.values, got.tokens, 0),
    )
    look = next((name for pattern, name in BY_KEY if re.fullmatch(pattern, key)), _unknown)
    return [look(evidence, tensor)]


@dataclass(frozen=True, slots=True)
class Tensor:
    """The first wrong tensor of tokens; `tokens` are those that the oracle has."""

    key: str
    tokens: Tokens
    expected_n: Values
    got_n: Values

    @property
    def is_coarse(self) -> bool:
        return is_coarse(self.expected_n[self.tokens], self.got_n[self.tokens])


def _rotated(evidence: Evidence, tensor: Tensor) -> Look:
    used_n = positions_from_rotation(evidence, tensor.expected_n, tensor.got_n)
    # What strays a little, as after a step that went wrong, is rotated as it should be.
    if used_n is None or (used_n == evidence.position_n).all():
        return _unknown(evidence, tensor)
    return name_positions(evidence, used_n)


def _attended(evidence: Evidence, tensor: Tensor) -> Look:
    if tensor.is_coarse:
        return _unknown(evidence, tensor)
    layer = tensor.key.removesuffix("out")
    if any(layer + part not in evidence.oracle for part in "qkv"):
        return _unknown(evidence, tensor)
    q_nNH, k_nKH, v_nKH = (evidence.oracle[layer + part].values for part in "qkv")
    return name_attention(evidence, Heads(q_nNH, k_nKH, v_nKH, tensor.expected_n, tensor.got_n))


def _token_losses(evidence: Evidence, tensor: Tensor) -> Look:
    told = None if tensor.is_coarse else labels_from_losses(evidence)
    return _unknown(evidence, tensor) if told is None else name_labels(evidence, *told)


def _unknown(_evidence: Evidence, tensor: Tensor) -> Look:
    if tensor.is_coarse:
        return Look("low-precision", f"{tensor.key} is off by less than {COARSE:.2g} of its size")
    return Look("unclassified", f"{tensor.key} is wrong, and nothing before it")


BY_KEY: tuple[tuple[str, Callable[[Evidence, Tensor], Look]], ...] = (
    (r"ids", lambda evidence, tensor: name_ids(evidence, tensor.got_n)),
    (r"positions", lambda evidence, tensor: name_positions(evidence, tensor.got_n)),
    (
        r"labels",
        lambda evidence, tensor: name_labels(evidence, tensor.tokens, tensor.got_n[tensor.tokens]),
    ),
    (r".*\.attn\.[qk]", _rotated),
    (r".*\.attn\.out", _attended),
    (r"nll", _token_losses),
    (
        r"weight",
        lambda evidence, tensor: name_weights(evidence, tensor.expected_n, tensor.got_n),
    ),
)


def _reported(evidence: Evidence) -> list[Look]:
    """Losses that do not follow from what was trained on; ranks that disagree."""
    looks: list[Look] = []
    wrong = evidence.wrong
    before = [key for key in wrong if key in ("nll", "weight")]
    split = _misfit(evidence.comparison, MisfitKind.SPLIT)
    if split:
        looks.append(Look("replica-split", f"ranks hold different copies of {split.key}"))
    if "loss" in wrong and not before:
        expected, got = evidence.comparison.loss or (0.0, 0.0)
        gradients = [key for key in wrong if key.startswith(GRADIENT)]
        if gradients and wrong[0] == "loss":
            looks.append(name_gradients(evidence))
        name = "loss-misreported" if np.isfinite(got) else "non-finite"
        looks.append(Look(name, f"loss {got:.6g} instead of {expected:.6g}"))
    return looks


def _misfit(comparison: Comparison, kind: MisfitKind) -> Misfit | None:
    return next((f for f in comparison.misfits if f.kind is kind), None)
