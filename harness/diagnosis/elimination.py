"""Which hypotheses are left: those that predict every wrong loss of every experiment."""

from collections.abc import Sequence
from itertools import starmap

import numpy as np
import torch

from harness.compare import Look
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import Forward, Pass, passes
from harness.diagnosis.hypotheses import variants
from harness.diagnosis.inference import KINDS, explained_by_kv_heads, kinds_of_sight
from harness.diagnosis.readout import looks_of_loss, read_loss
from harness.reference.decoder import Decoder

Key = tuple[str, str]


def name_forward(
    wrong: Sequence[Evidence], right: Sequence[Evidence], of: int
) -> tuple[Look, ...]:
    """What is left, of a forward pass that is wrong, and what is wrong besides; or nothing.

    `wrong` are those of `of` cases that go wrong whose losses of tokens are wrong.
    """
    where = f"{len(wrong)} of {of} cases that go wrong"
    left = hypotheses_left(wrong, right)
    if left:
        key, sometimes = min(left.items(), key=lambda item: item[1])
        name, how = key
        also, whole = _besides(wrong, key)
        always = ", but not always" if sometimes else ""
        said = f"predicts all {'numbers' if whole else 'losses'} of {where}"
        return Look(name, f"{how}{always}: {said}", how=how), *also
    forwards = [(each, Forward(each.case, passes(each.case, each.owner_n))) for each in wrong]
    kinds = set[str]()
    for seen in starmap(kinds_of_sight, forwards):
        if seen is None:
            break
        kinds |= seen
    else:
        name = next(kind for kind in KINDS if kind in kinds)
        return (Look(name, f"tokens see {KINDS[name]}: that explains all losses of {where}"),)
    if all(starmap(explained_by_kv_heads, forwards)):
        why = f"heads read other kv heads than their own: that explains all losses of {where}"
        return (Look("kv-repeat", why),)
    return ()


def hypotheses_left(wrong: Sequence[Evidence], right: Sequence[Evidence]) -> dict[Key, int]:
    """Which predict all wrong losses, and in how many streams each errs that came out right."""
    left: dict[Key, int] | None = None
    # Those with the most wrong losses first: they say the most.
    for evidence in (*sorted(wrong, key=_wrong_losses, reverse=True), *right):
        if left == {}:
            break
        model = Forward(evidence.case, []).model
        for each in passes(evidence.case, evidence.owner_n):
            changed = {(name, how): other for name, how, other in variants(each)}
            if not _predicts(evidence, model, each):
                left = {
                    key: (left or {}).get(key, 0)
                    for key in (changed if left is None else left)
                    if key in changed and _predicts(evidence, model, changed[key])
                }
            elif left:
                for key in left.keys() & changed.keys():
                    left[key] += not _predicts(evidence, model, changed[key])
    return left or {}


def _besides(wrong: Sequence[Evidence], key: Key) -> tuple[tuple[Look, ...], bool]:
    """What else is wrong, and whether nothing is: then all gradients follow from this pass."""
    told: list[dict[str, Look]] = []
    whole = True
    for evidence in wrong:
        forward = Forward(evidence.case, passes(evidence.case, evidence.owner_n))
        forward = forward.changed([_changed(each, key) for each in forward.passes])
        reading = read_loss(forward, evidence.got, evidence.labels_n)
        if reading is None or not reading.is_of_labels or reading.unexplained:
            return (), False
        told.append({look.name: look for look in looks_of_loss(evidence, reading)})
        whole = whole and not told[-1] and _gives_the_loss(evidence, forward)
    shared = [look for name, look in told[0].items() if all(name in each for each in told)]
    return tuple(shared[:1]), whole


def _gives_the_loss(evidence: Evidence, forward: Forward) -> bool:
    numbers = np.arange(evidence.case.tokens)
    expected = evidence.oracle["weight"].values @ forward.surprise[numbers, evidence.labels_n]
    return bool(evidence.alike(np.atleast_1d(expected), evidence.got["loss"].values).all())


def _changed(plain: Pass, key: Key) -> Pass:
    return next((other for name, how, other in variants(plain) if (name, how) == key), plain)


def _predicts(evidence: Evidence, model: Decoder, each: Pass) -> bool:
    """Whether every loss of this stream comes out as it was seen."""
    real_T = ~each.is_padding
    numbers = each.numbers_T[real_T].numpy()
    with torch.no_grad():
        logits_TV = each.read(model.logits(each.hidden(model)))[real_T]
    surprise_TV = -logits_TV.log_softmax(-1).numpy()
    targets = np.isin(numbers, evidence.targets)
    labels = evidence.labels_n[numbers[targets]]
    expected = surprise_TV[targets, labels]
    return bool(evidence.alike(expected, evidence.losses_n[numbers[targets]]).all())


def _wrong_losses(evidence: Evidence) -> int:
    return next(result.wrong for result in evidence.comparison.keys if result.key == "nll")
