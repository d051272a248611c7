"""Which hypotheses are left: those that predict every wrong loss of every experiment."""

from collections.abc import Callable, Collection, Sequence
from itertools import starmap

import numpy as np
import torch

from harness.case import Case
from harness.compare import Look, alike
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import Forward, Pass, passes
from harness.diagnosis.hypotheses import variants
from harness.diagnosis.inference import KINDS, explained_by_kv_heads, kinds_of_sight
from harness.diagnosis.readout import looks_of_loss, read_loss
from harness.reference.decoder import Decoder
from harness.trace.trace import Tokens, Values

# A name, and what exactly is wrong.
Key = tuple[str, str]
# Hypotheses, and in how many streams each errs that came out right.
Left = dict[Key, int]
# Runs a case of which these predict different losses; nothing where there is none.
Decide = Callable[[Collection[Key]], Evidence | None]


def name_forward(
    wrong: Sequence[Evidence], right: Sequence[Evidence], of: int, decide: Decide
) -> tuple[Look, ...]:
    """What is left, of a forward pass that is wrong, and what is wrong besides; or nothing.

    `wrong` are those of `of` cases that go wrong whose losses of tokens are wrong.
    """
    where = f"{len(wrong)} of {of} cases that go wrong"
    left, more = _decided(wrong[0].case, hypotheses_left(wrong, right), decide)
    if left:
        key, sometimes = min(left.items(), key=lambda item: item[1])
        name, how = key
        also, whole = _besides(wrong, key)
        always = ", but not always" if sometimes else ""
        said = f"predicts all {'numbers' if whole else 'losses'} of {where}"
        said += f", and the losses of {more} more, which others do not" if more else ""
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


def hypotheses_left(wrong: Sequence[Evidence], right: Sequence[Evidence]) -> Left:
    """Keep the hypotheses that predict all wrong losses."""
    left: Left | None = None
    # Cases with the most wrong losses come first: they say the most.
    for evidence in (*sorted(wrong, key=_wrong_losses, reverse=True), *right):
        if left == {}:
            break
        left = _left_after(evidence, left)
    return left or {}


def _decided(case: Case, left: Left, decide: Decide) -> tuple[Left, int]:
    """Keep those that also hold where they predict different losses; count such cases."""
    held = 0
    while len(best := [key for key in left if left[key] == min(left.values())]) > 1:
        evidence = decide(best)
        if evidence is None:
            break
        after = _left_after(evidence, left) or {}
        # With other heads than this case a candidate may go wrong in a way of its own.
        if after or _heads(evidence.case) == _heads(case):
            left = after
            held += 1
    return left, held


def _heads(case: Case) -> tuple[int, int, int]:
    return case.sp, case.heads, case.kv_heads


def tells_apart(case: Case, keys: Collection[Key]) -> bool:
    """Whether these predict different losses of a case that nobody has run."""
    model = Forward(case, []).model
    ids_n = [number for row in range(len(case.rows)) for number in case.ids_of(row)]
    bits_n = [bit == "1" for row in case.rows for bit in row.mask]
    ends = case.offsets[1:]
    targets = np.array([n for n in range(case.tokens - 1) if n + 1 not in ends and bits_n[n + 1]])
    labels_n = np.array([*ids_n[1:], 0])
    for plain in passes(case, np.full(case.tokens, -1)):
        changed = {(name, how): other for name, how, other in variants(plain)}
        tried = [changed.get(key, plain) for key in keys]
        first, *others = (_losses(model, each, targets, labels_n)[1] for each in tried)
        if not all(alike(first, other, case.dtype).all() for other in others):
            return True
    return False


def _left_after(evidence: Evidence, left: Left | None) -> Left | None:
    """Keep the hypotheses that predict this case; None means no wrong case yet."""
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
            left = {
                key: errs + (key in changed and not _predicts(evidence, model, changed[key]))
                for key, errs in left.items()
            }
    return left


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
        looks = looks_of_loss(evidence, reading)
        # If a name comes several times, the first says the most.
        told.append({look.name: look for look in reversed(looks)})
        whole = whole and not told[-1] and _gives_the_loss(evidence, forward)
    # On some cases a second bug changes nothing.
    shown = [each for each in told if each]
    if len(shown) < 2:
        return (), whole
    shared = [look for name, look in shown[0].items() if all(name in each for each in shown)]
    return tuple(shared[-1:]), whole


def _gives_the_loss(evidence: Evidence, forward: Forward) -> bool:
    numbers = np.arange(evidence.case.tokens)
    expected = evidence.oracle["weight"].values @ forward.surprise[numbers, evidence.labels_n]
    return bool(evidence.alike(np.atleast_1d(expected), evidence.got["loss"].values).all())


def _changed(plain: Pass, key: Key) -> Pass:
    return next((other for name, how, other in variants(plain) if (name, how) == key), plain)


def _predicts(evidence: Evidence, model: Decoder, each: Pass) -> bool:
    """Whether every loss of this stream comes out as it was seen."""
    tokens, expected = _losses(model, each, evidence.targets, evidence.labels_n)
    return bool(evidence.alike(expected, evidence.losses_n[tokens]).all())


def _losses(
    model: Decoder, each: Pass, targets: Tokens, labels_n: Tokens
) -> tuple[Tokens, Values]:
    """What those of this stream lose, by their numbers."""
    numbers_T = each.numbers_T.numpy()
    (at,) = np.nonzero(np.isin(numbers_T, targets))
    at = at[numbers_T[at].argsort()]
    tokens = numbers_T[at]
    with torch.no_grad():
        logits_nV = each.read(model.logits(each.hidden(model)))[torch.from_numpy(at)]
    losses_n: Values = -logits_nV.log_softmax(-1).numpy()[np.arange(len(at)), labels_n[tokens]]
    return tokens, losses_n


def _wrong_losses(evidence: Evidence) -> int:
    return next(result.wrong for result in evidence.comparison.keys if result.key == "nll")
