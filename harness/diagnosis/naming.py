"""Name a failure by its own tensors: the first wrong one, then what does not follow from it.

This module knows no candidate.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from harness.against import ITSELF, is_of_recipe
from harness.compare import Comparison, Look
from harness.diagnosis.attention import Heads, is_plain_attention, name_attention
from harness.diagnosis.evidence import Evidence, TokenTensor
from harness.diagnosis.gradients import (
    SMALL_ERROR,
    has_small_errors,
    name_gradients,
    name_uncut_heads,
)
from harness.diagnosis.inputs import (
    name_ids,
    name_positions,
    name_shard_ends,
    positions_from_rotation,
)
from harness.diagnosis.labels import labels_from_losses, looks_of_labels
from harness.diagnosis.losses import name_loss
from harness.diagnosis.weights import looks_of_weights
from harness.trace import GRADIENT, METRIC, WAITS, Fault, Kind, Misfit, MisfitKind, Trace
from harness.trace.trace import Values

# The keys that reveal the most between ids and losses.
WORTH_EMITTING = ("labels", "positions", "layers.0.attn.q", "layers.0.attn.out")
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
    """Name a run that left no trace."""
    if fault.kind is Kind.HUNG and not any(WAITS in line for line in fault.ranks):
        return Look("unclassified", "no rank waits for another in a collective")
    return Look(BY_KIND.get(fault.kind, "unclassified"), "")


def name_divergence(comparison: Comparison, oracle: Trace, got: Trace) -> tuple[Look, ...]:
    """Name a traced run that diverged: the root first, then what the root does not explain."""
    evidence = Evidence(comparison, oracle, got)
    found = [
        *_looks_of_ownership(evidence),
        *islice((look for look in _looks_of_first_wrong(evidence) if look.shown), 1),
        *_looks_of_results(evidence),
    ]
    looks = [_doubt_rounding(look, evidence) for look in found]
    if not looks:
        first = (evidence.wrong_keys or ["nothing"])[0]
        # Metrics come after the loss and all gradients.
        is_for_the_log = first.startswith(METRIC)
        name = "loss-misreported" if is_for_the_log else "unclassified"
        right = ", and the loss and all gradients are right" if is_for_the_log else ""
        looks = [Look(name, f"first wrong: {first}{right}")]
    # If a name occurs several times, its first look is kept.
    return tuple({look.name: look for look in reversed(looks)}.values())[::-1]


def _doubt_rounding(look: Look, evidence: Evidence) -> Look:
    """Keep `low-precision` in fp64 only if something besides the size of errors supports it."""
    if look.name != "low-precision" or evidence.case.dtype != "fp64":
        return look
    first = evidence.wrong_keys[0]
    expected, got = (trace[first].values for trace in (evidence.oracle, evidence.got))
    if not _is_held_in_fp32(expected) and _is_held_in_fp32(got):
        return replace(look, why=f"{look.why}, and fp32 holds its values exactly")
    if evidence.comparison.measured.as_in_fp32:
        return look
    before = "" if first.startswith(GRADIENT) else f", and {_describe_before(evidence, first)}"
    why = f"{look.why}{before}; whether a shorter format made that, this case does not tell"
    return Look("unclassified", why)


def _is_held_in_fp32(values: Values) -> bool:
    return bool((values.astype(np.float32) == values).all())


def roots(evidence: Evidence) -> list[Look]:
    """Return every name that fits the root on this case, the best first."""
    return (
        _looks_of_ownership(evidence)
        or list(_looks_of_first_wrong(evidence))
        or _looks_of_results(evidence)[:1]
    )


def _looks_of_ownership(evidence: Evidence) -> list[Look]:
    """Name tokens that no rank or several ranks computed."""
    looks: list[Look] = []
    comparison = evidence.comparison
    twice = _misfit(comparison, MisfitKind.TWICE)
    if twice and comparison.measured.silent:
        looks.append(Look("vacuous", "every peer computes all tokens, and sends nothing"))
    elif twice:
        looks.append(Look("token-owned-twice", f"{len(twice.tokens)} tokens, in {twice.key}"))
    lost = _misfit(comparison, MisfitKind.LOST)
    if lost:
        looks.append(Look("token-lost", f"{len(lost.tokens)} tokens, from {lost.key} on"))
    return looks


def _looks_of_first_wrong(evidence: Evidence) -> Iterator[Look]:
    """Yield names for the first wrong tensor."""
    # `_looks_of_results` handles a wrong loss, together with the gradients that come after it.
    if not evidence.wrong_keys or evidence.wrong_keys[0] == "loss":
        return
    uncut = name_uncut_heads(evidence)
    if uncut:
        yield uncut
        return
    key = evidence.wrong_keys[0]
    expected, got = evidence.oracle[key], evidence.got[key]
    if not np.isfinite(got.values).all():
        yield Look("non-finite", f"first in {key}")
        return
    if key.startswith(GRADIENT):
        yield name_gradients(evidence)
        return
    if got.tokens is None or expected.tokens is None:
        return
    tensor = TokenTensor(
        key=key,
        tokens=expected.tokens,
        expected_n=evidence.scatter(expected.values, expected.tokens, 0),
        got_n=evidence.scatter(got.values, got.tokens, 0),
    )
    looks = next((looks for pattern, looks in BY_KEY if re.fullmatch(pattern, key)), _unknown)
    yield from looks(evidence, tensor)


def _has_small_errors(tensor: TokenTensor) -> bool:
    return has_small_errors(tensor.expected_n[tensor.tokens], tensor.got_n[tensor.tokens])


def _rotated(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    used_n = positions_from_rotation(evidence, tensor.expected_n, tensor.got_n)
    # Values that stray a little, as after a wrong step, may be rotated for the right positions.
    if used_n is None or (used_n == evidence.position_n).all():
        yield from _unknown(evidence, tensor)
    else:
        yield name_positions(evidence, used_n)


def _attended(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    layer = tensor.key.removesuffix("out")
    if _has_small_errors(tensor) or any(layer + part not in evidence.oracle for part in "qkv"):
        yield from _unknown(evidence, tensor)
        return
    q_nNH, k_nKH, v_nKH = (evidence.oracle[layer + part].values for part in "qkv")
    heads = Heads(q_nNH, k_nKH, v_nKH, tensor.expected_n, tensor.got_n)
    if is_plain_attention(evidence, heads):
        yield name_attention(evidence, heads)
    else:
        yield from _unknown(evidence, tensor)


def _token_losses(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    labels = None if _has_small_errors(tensor) else labels_from_losses(evidence)
    if labels is None:
        yield from _unknown(evidence, tensor)
    else:
        yield from looks_of_labels(evidence, *labels)


def _ids(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    yield name_ids(evidence, tensor.got_n)


def _positions(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    yield name_positions(evidence, tensor.got_n)


def _labels(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    return looks_of_labels(evidence, tensor.tokens, tensor.got_n[tensor.tokens])


def _weights(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    return looks_of_weights(evidence, tensor.expected_n, tensor.got_n)


def _unknown(evidence: Evidence, tensor: TokenTensor) -> Iterator[Look]:
    # If the model is ours, experiments find out more.
    if evidence.comparison.against == ITSELF:
        at_ends = name_shard_ends(evidence, tensor)
        if at_ends:
            yield at_ends
            return
    result = next(key for key in evidence.comparison.measured.keys if key.key == tensor.key)
    # A shorter format would round most elements.
    is_few = 2 * result.wrong < result.elements
    if _has_small_errors(tensor) and not is_few:
        why = f"{tensor.key} is off by less than {SMALL_ERROR:.2g} of its size"
        yield Look("low-precision", why)
    else:
        count = f"{result.wrong} of {result.elements} elements of {tensor.key} are wrong"
        summary = count if is_few else f"{tensor.key} is wrong"
        yield Look("unclassified", f"{summary}, and {_describe_before(evidence, tensor.key)}")


def _describe_before(evidence: Evidence, key: str) -> str:
    """Describe what is known before the first wrong tensor, and what to emit to see more."""
    shown = [result.key for result in evidence.comparison.measured.keys]
    last, *_ = [*reversed(shown[: shown.index(key)]), ""]
    keys = list(evidence.oracle)
    between = keys[keys.index(last) + 1 if last else 0 : keys.index(key)]
    # The oracle of a model that is not ours may have none of our keys.
    missing = between if last or between else list(WORTH_EMITTING)
    known = f"{last} before it is right" if last else "nothing before it was emitted"
    if not missing:
        return known
    wanted = ", ".join(missing[:MOST_KEYS])
    if evidence.comparison.against == ITSELF:
        # The user's loss may have more inputs than ids, such as old log-probabilities.
        wanted += " and all else that the step is given by token"
    return f"{known}; emit {wanted} to see further"


BY_KEY: tuple[tuple[str, Callable[[Evidence, TokenTensor], Iterator[Look]]], ...] = (
    (r"ids", _ids),
    (r"positions", _positions),
    (r"labels", _labels),
    (r".*\.attn\.[qk]", _rotated),
    (r".*\.attn\.out", _attended),
    (r"nll", _token_losses),
    (r"weight", _weights),
)


def _looks_of_results(evidence: Evidence) -> list[Look]:
    """Name ranks that disagree, and a loss that does not follow from what was trained on."""
    looks: list[Look] = []
    wrong = evidence.wrong_keys
    split = _misfit(evidence.comparison, MisfitKind.SPLIT)
    if split:
        looks.append(Look("replica-split", f"ranks hold different copies of {split.key}"))
    if "loss" in wrong and not {"nll", "weight"} & set(wrong):
        expected, got = evidence.comparison.measured.loss or (0.0, 0.0)
        gradients = [key for key in wrong if key.startswith(GRADIENT)]
        if gradients and wrong[0] == "loss":
            # Without a target only padding can be learnt; a NaN is nothing learnt.
            is_learnt = np.isfinite(got) and not evidence.mask_n.any()
            why = "no token is a target, and something is learnt all the same"
            root = Look("pad-leak", why) if is_learnt else name_gradients(evidence)
            if root.name == "gradient-partial" and "weight" not in evidence.oracle:
                # A candidate that is compared with itself: no experiments follow.
                return [*looks, name_loss(evidence)]
            looks.append(root)
        # What a recipe's step makes of tokens is not known: its loss may be that of its gradients.
        is_explained = gradients and is_of_recipe(evidence.comparison.against)
        if not is_explained or not np.isfinite(got):
            name = "loss-misreported" if np.isfinite(got) else "non-finite"
            looks.append(Look(name, f"loss {got:.6g} instead of {expected:.6g}"))
    return looks


def _misfit(comparison: Comparison, kind: MisfitKind) -> Misfit | None:
    return next((f for f in comparison.measured.misfits if f.kind is kind), None)
