"""Which hypotheses are left: those that predict every wrong loss of every experiment."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Left:
    """What is left of all hypotheses after some experiments."""

    # And in how many streams each predicts wrong losses where right ones were seen.
    variants: dict[Key, int] | None = None
    # What single tokens see, where every loss is explained by that, and nothing where one is not.
    kinds: set[str] | None = field(default_factory=set)
    kv_heads: bool = True

    @property
    def none(self) -> bool:
        return not self.variants and self.kinds is None and not self.kv_heads


def name_forward(wrong: Sequence[Evidence], right: Sequence[Evidence]) -> tuple[Look, ...]:
    """What is left, of a forward pass that is wrong, and what is wrong besides; or nothing."""
    left = Left()
    # Those with the most wrong losses first: they say the most.
    for evidence in sorted(wrong, key=_wrong_losses, reverse=True):
        _test(evidence, left)
        if left.none:
            return ()
    for evidence in right if left.variants else ():
        _test(evidence, left)
    of = f"of {len(wrong)} of {len(wrong)} cases that go wrong"
    if left.variants:
        key, sometimes = min(left.variants.items(), key=lambda item: item[1])
        name, how = key
        also, whole = _besides(wrong, key)
        said = f"predicts all {'numbers' if whole else 'losses'} {of}"
        always = ", but not always" if sometimes else ""
        return Look(name, f"{how}{always}: {said}", how=how), *also
    if left.kinds:
        name = next(kind for kind in KINDS if kind in left.kinds)
        return (Look(name, f"tokens see {KINDS[name]}: that explains every loss {of}"),)
    return (Look("kv-repeat", f"heads read other kv heads than their own: that explains {of}"),)


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


def _test(evidence: Evidence, left: Left) -> None:
    """Take from what is left all that this case speaks against."""
    plain = Forward(evidence.case, passes(evidence.case, evidence.owner_n))
    right = [_predicts(evidence, plain.model, each) for each in plain.passes]
    for each, is_right in zip(plain.passes, right, strict=True):
        changed = {(name, how): other for name, how, other in variants(each)}
        if not is_right:
            among = changed if left.variants is None else left.variants
            left.variants = {
                key: (left.variants or {}).get(key, 0)
                for key in among
                if key in changed and _predicts(evidence, plain.model, changed[key])
            }
        elif left.variants:
            for key in left.variants.keys() & changed.keys():
                left.variants[key] += not _predicts(evidence, plain.model, changed[key])
    if all(right):
        return
    if left.kinds is not None:
        kinds = kinds_of_sight(evidence, plain)
        left.kinds = None if kinds is None else left.kinds | kinds
    left.kv_heads = left.kv_heads and explained_by_kv_heads(evidence, plain)


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
