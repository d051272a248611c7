"""The root of a failure, by the first tensor that is wrong, and then what does not follow from it.

Nothing here knows any candidate: everything is told by tensors.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from harness.against import ITSELF
from harness.compare import Comparison, Look
from harness.diagnosis.attention import Heads, is_plain_attention, name_attention
from harness.diagnosis.evidence import Evidence, Tensor
from harness.diagnosis.gradients import COARSE, is_coarse, name_gradients, name_uncut
from harness.diagnosis.inputs import (
    name_at_ends,
    name_ids,
    name_positions,
    positions_from_rotation,
)
from harness.diagnosis.labels import labels_from_losses, looks_of_labels
from harness.diagnosis.losses import told_by_loss
from harness.diagnosis.weights import looks_of_weights
from harness.trace import GRADIENT, WAITS, Fault, Kind, Misfit, MisfitKind, Trace
from harness.trace.trace import Values

# What says the most of what may be wrong between ids and losses.
WORTH_SHOWING = ("labels", "positions", "layers.0.attn.q", "layers.0.attn.out")
MOST_KEYS = 4
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
    if fault.kind is Kind.HUNG and not any(WAITS in line for line in fault.ranks):
        return Look("unclassified", "no rank waits for another in a collective")
    return Look(BY_KIND.get(fault.kind, "unclassified"), "")


def name_divergence(comparison: Comparison, oracle: Trace, got: Trace) -> tuple[Look, ...]:
    """Name a traced run that diverged: the root first, then what it does not explain."""
    evidence = Evidence(comparison, oracle, got)
    found = [
        *_whole(evidence),
        *islice((look for look in _first(evidence) if look.shown), 1),
        *_reported(evidence),
    ]
    looks = [_proven(look, evidence) for look in found]
    if not looks:
        looks = [Look("unclassified", f"first wrong: {(evidence.wrong or ['nothing'])[0]}")]
    return tuple({look.name: look for look in reversed(looks)}.values())[::-1]


def _proven(look: Look, evidence: Evidence) -> Look:
    """In fp64 a small error is no matter of a format unless something besides its size says so."""
    if look.name != "low-precision" or evidence.case.dtype != "fp64":
        return look
    first = evidence.wrong[0]
    expected, got = (trace[first].values for trace in (evidence.oracle, evidence.got))
    if not _is_held_in_fp32(expected) and _is_held_in_fp32(got):
        return replace(look, why=f"{look.why}, and fp32 holds its values exactly")
    if evidence.comparison.as_in_fp32:
        return look
    before = "" if first.startswith(GRADIENT) else f", and {_before(evidence, first)}"
    said = f"{look.why}{before}; whether that is rounding, this case does not tell"
    return Look("unclassified", said)


def _is_held_in_fp32(values: Values) -> bool:
    return bool((values.astype(np.float32) == values).all())


def roots(evidence: Evidence) -> list[Look]:
    """All that the root may be called on this case, what says the most first."""
    return _whole(evidence) or list(_first(evidence)) or _reported(evidence)[:1]


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


def _first(evidence: Evidence) -> Iterator[Look]:
    """What the first wrong tensor looks like."""
    # A loss comes after all tokens and before the gradients: `_reported` looks at both.
    if not evidence.wrong or evidence.wrong[0] == "loss":
        return
    uncut = name_uncut(evidence)
    if uncut:
        yield uncut
        return
    key = evidence.wrong[0]
    expected, got = evidence.oracle[key], evidence.got[key]
    if not np.isfinite(got.values).all():
        yield Look("non-finite", f"first in {key}")
        return
    if key.startswith(GRADIENT):
        yield name_gradients(evidence)
        return
    if got.tokens is None or expected.tokens is None:
        return
    tensor = Tensor(
        key=key,
        tokens=expected.tokens,
        expected_n=evidence.spread(expected.values, expected.tokens, 0),
        got_n=evidence.spread(got.values, got.tokens, 0),
    )
    looks = next((looks for pattern, looks in BY_KEY if re.fullmatch(pattern, key)), _unknown)
    yield from looks(evidence, tensor)


def _is_coarse(tensor: Tensor) -> bool:
    return is_coarse(tensor.expected_n[tensor.tokens], tensor.got_n[tensor.tokens])


def _rotated(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    used_n = positions_from_rotation(evidence, tensor.expected_n, tensor.got_n)
    # What strays a little, as after a step that went wrong, is rotated as it should be.
    if used_n is None or (used_n == evidence.position_n).all():
        yield from _unknown(evidence, tensor)
    else:
        yield name_positions(evidence, used_n)


def _attended(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    layer = tensor.key.removesuffix("out")
    if _is_coarse(tensor) or any(layer + part not in evidence.oracle for part in "qkv"):
        yield from _unknown(evidence, tensor)
        return
    q_nNH, k_nKH, v_nKH = (evidence.oracle[layer + part].values for part in "qkv")
    heads = Heads(q_nNH, k_nKH, v_nKH, tensor.expected_n, tensor.got_n)
    if is_plain_attention(evidence, heads):
        yield name_attention(evidence, heads)
    else:
        yield from _unknown(evidence, tensor)


def _token_losses(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    told = None if _is_coarse(tensor) else labels_from_losses(evidence)
    yield from _unknown(evidence, tensor) if told is None else looks_of_labels(evidence, *told)


def _ids(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    yield name_ids(evidence, tensor.got_n)


def _positions(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    yield name_positions(evidence, tensor.got_n)


def _labels(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    return looks_of_labels(evidence, tensor.tokens, tensor.got_n[tensor.tokens])


def _weights(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    return looks_of_weights(evidence, tensor.expected_n, tensor.got_n)


def _unknown(evidence: Evidence, tensor: Tensor) -> Iterator[Look]:
    # For our own model, experiments know more.
    if evidence.comparison.against == ITSELF:
        at_ends = name_at_ends(evidence, tensor)
        if at_ends:
            yield at_ends
            return
    result = next(each for each in evidence.comparison.keys if each.key == tensor.key)
    # A shorter format rounds most of them.
    few = 2 * result.wrong < result.elements
    if _is_coarse(tensor) and not few:
        yield Look("low-precision", f"{tensor.key} is off by less than {COARSE:.2g} of its size")
    else:
        part = f"{result.wrong} of {result.elements} elements of {tensor.key} are wrong"
        said = part if few else f"{tensor.key} is wrong"
        yield Look("unclassified", f"{said}, and {_before(evidence, tensor.key)}")


def _before(evidence: Evidence, key: str) -> str:
    """How much is known of what comes before the first wrong tensor."""
    shown = [result.key for result in evidence.comparison.keys]
    last, *_ = [*reversed(shown[: shown.index(key)]), ""]
    keys = list(evidence.oracle)
    between = keys[keys.index(last) + 1 if last else 0 : keys.index(key)]
    # A model that is not ours may have other tensors.
    missing = between if last or between else list(WORTH_SHOWING)
    told = f"{last} before it is right" if last else "nothing before it was emitted"
    if not missing:
        return told
    wanted = ", ".join(missing[:MOST_KEYS])
    if evidence.comparison.against == ITSELF:
        # A loss of one's own may be given more than ids, such as old log-probabilities.
        wanted += " and all else that the step is given by token"
    return f"{told}; emit {wanted} to see further"


BY_KEY: tuple[tuple[str, Callable[[Evidence, Tensor], Iterator[Look]]], ...] = (
    (r"ids", _ids),
    (r"positions", _positions),
    (r"labels", _labels),
    (r".*\.attn\.[qk]", _rotated),
    (r".*\.attn\.out", _attended),
    (r"nll", _token_losses),
    (r"weight", _weights),
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
            # Without a target all that can be learnt is no token; a NaN is nothing learnt.
            is_learnt = np.isfinite(got) and not evidence.mask_n.any()
            why = "no token is a target, and something is learnt all the same"
            root = Look("pad-leak", why) if is_learnt else name_gradients(evidence)
            if root.name == "gradient-partial" and "weight" not in evidence.oracle:
                # No experiment will tell.
                return [*looks, told_by_loss(evidence)]
            looks.append(root)
        name = "loss-misreported" if np.isfinite(got) else "non-finite"
        looks.append(Look(name, f"loss {got:.6g} instead of {expected:.6g}"))
    return looks


def _misfit(comparison: Comparison, kind: MisfitKind) -> Misfit | None:
    return next((f for f in comparison.misfits if f.kind is kind), None)
