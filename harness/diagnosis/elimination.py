"""Eliminate hypotheses: the ones left predict every wrong loss of every experiment."""

from collections.abc import Callable, Collection, Sequence
from itertools import starmap

import numpy as np
import torch

from harness.case import Case
from harness.compare import Look, alike
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import Forward, Pass, plain_passes
from harness.diagnosis.hypotheses import variants
from harness.diagnosis.readout import looks_of_loss, read_loss
from harness.diagnosis.visible_ranges import (
    KINDS,
    is_explained_by_kv_heads,
    kinds_of_wrong_ranges,
)
from harness.reference.decoder import Decoder
from harness.trace.trace import Tokens, Values

# One variant of a hypothesis: a name, and what exactly is wrong.
VariantKey = tuple[str, str]
# The variants that are left, and for how many right streams each predicts wrong losses.
Survivors = dict[VariantKey, int]
# Runs a case for which these variants predict different losses; None if there is no such case.
RunDecisiveCase = Callable[[Collection[VariantKey]], Evidence | None]


def name_forward(
    wrong: Sequence[Evidence],
    right: Sequence[Evidence],
    count: int,
    run_decisive_case: RunDecisiveCase,
) -> tuple[Look, ...]:
    """Name a wrong forward pass, and what is wrong besides; empty if nothing explains it.

    `wrong` are those of `count` wrong cases that have wrong losses of tokens.
    """
    where = f"{len(wrong)} of {count} cases that go wrong"
    survivors = surviving_hypotheses(wrong, right)
    survivors, decisive = _narrow_down(wrong[0].case, survivors, run_decisive_case)
    if survivors:
        key, errs = min(survivors.items(), key=lambda item: item[1])
        name, how = key
        other_looks, is_whole = _find_second_bug(wrong, key)
        always = ", but not always" if errs else ""
        why = f"predicts all {'numbers' if is_whole else 'losses'} of {where}"
        why += f", and the losses of {decisive} more, which others do not" if decisive else ""
        return Look(name, f"{how}{always}: {why}", how=how), *other_looks
    forwards = [(evidence, _plain_forward(evidence)) for evidence in wrong]
    kinds = set[str]()
    for kinds_of_case in starmap(kinds_of_wrong_ranges, forwards):
        if kinds_of_case is None:
            break
        kinds |= kinds_of_case
    else:
        name = next(kind for kind in KINDS if kind in kinds)
        return (Look(name, f"tokens see {KINDS[name]}: that explains all losses of {where}"),)
    if all(starmap(is_explained_by_kv_heads, forwards)):
        why = f"heads read other kv heads than their own: that explains all losses of {where}"
        return (Look("kv-repeat", why),)
    return ()


def surviving_hypotheses(wrong: Sequence[Evidence], right: Sequence[Evidence]) -> Survivors:
    """Keep the variants that predict all wrong losses."""
    survivors: Survivors | None = None
    # Cases with the most wrong losses come first, because they eliminate the most.
    for evidence in (*sorted(wrong, key=_wrong_losses, reverse=True), *right):
        if survivors == {}:
            break
        survivors = _survivors_after(evidence, survivors)
    return survivors or {}


def _narrow_down(
    case: Case, survivors: Survivors, run_decisive_case: RunDecisiveCase
) -> tuple[Survivors, int]:
    """Run cases on which the best survivors differ; return the last survivors and the count."""
    count = 0
    while len(best := [k for k in survivors if survivors[k] == min(survivors.values())]) > 1:
        evidence = run_decisive_case(best)
        if evidence is None:
            break
        after = _survivors_after(evidence, survivors) or {}
        # With other numbers of heads than this case has, a candidate may have another bug.
        if after or _head_counts(evidence.case) == _head_counts(case):
            survivors = after
            count += 1
    return survivors, count


def _head_counts(case: Case) -> tuple[int, int, int]:
    return case.sp, case.heads, case.kv_heads


def is_decisive(case: Case, keys: Collection[VariantKey]) -> bool:
    """Return whether these variants predict different losses of a case that has not been run."""
    model = Forward(case, []).model
    ids_n = [number for row in range(len(case.rows)) for number in case.ids_of(row)]
    bits_n = [bit == "1" for row in case.rows for bit in row.mask]
    ends = case.offsets[1:]
    targets = np.array([n for n in range(case.tokens - 1) if n + 1 not in ends and bits_n[n + 1]])
    labels_n = np.array([*ids_n[1:], 0])
    for plain in plain_passes(case, np.full(case.tokens, -1)):
        changed = {(name, how): other for name, how, other in variants(plain)}
        tried = [changed.get(key, plain) for key in keys]
        first, *others = (_losses(model, stream, targets, labels_n)[1] for stream in tried)
        if not all(alike(first, other, case.dtype).all() for other in others):
            return True
    return False


def _survivors_after(evidence: Evidence, survivors: Survivors | None) -> Survivors | None:
    """Keep the variants that predict this case; None means that no case was wrong yet."""
    model = Forward(evidence.case, []).model
    for plain in plain_passes(evidence.case, evidence.owner_n):
        changed = {(name, how): other for name, how, other in variants(plain)}
        if not _predicts(evidence, model, plain):
            survivors = {
                key: (survivors or {}).get(key, 0)
                for key in (changed if survivors is None else survivors)
                if key in changed and _predicts(evidence, model, changed[key])
            }
        elif survivors:
            survivors = {
                key: errs + (key in changed and not _predicts(evidence, model, changed[key]))
                for key, errs in survivors.items()
            }
    return survivors


def _find_second_bug(wrong: Sequence[Evidence], key: VariantKey) -> tuple[tuple[Look, ...], bool]:
    """Name what is wrong besides a variant; also return whether it predicts all numbers."""
    looks_by_case: list[dict[str, Look]] = []
    is_whole = True
    for evidence in wrong:
        plain = _plain_forward(evidence)
        forward = plain.with_passes([_apply(stream, key) for stream in plain.passes])
        reading = read_loss(forward, evidence.got, evidence.labels_n)
        if reading is None or not reading.has_labels or reading.unexplained:
            return (), False
        looks = looks_of_loss(evidence, reading)
        # If a name comes several times, the first look is the best.
        looks_by_case.append({look.name: look for look in reversed(looks)})
        is_whole = is_whole and not looks and _predicts_loss(evidence, forward)
    # A second bug may change nothing on some cases.
    shown = [looks_by_name for looks_by_name in looks_by_case if looks_by_name]
    if len(shown) < 2:
        return (), is_whole
    shared = [look for name, look in shown[0].items() if all(name in names for names in shown)]
    return tuple(shared[-1:]), is_whole


def _plain_forward(evidence: Evidence) -> Forward:
    return Forward(evidence.case, plain_passes(evidence.case, evidence.owner_n))


def _predicts_loss(evidence: Evidence, forward: Forward) -> bool:
    numbers = np.arange(evidence.case.tokens)
    expected = evidence.oracle["weight"].values @ forward.nll_by_label[numbers, evidence.labels_n]
    return bool(evidence.alike(np.atleast_1d(expected), evidence.got["loss"].values).all())


def _apply(plain: Pass, key: VariantKey) -> Pass:
    """Return a variant of the pass; the pass itself if the variant changes nothing on it."""
    return next((other for name, how, other in variants(plain) if (name, how) == key), plain)


def _predicts(evidence: Evidence, model: Decoder, stream: Pass) -> bool:
    """Return whether a pass gives every loss of its stream as the candidate reported it."""
    tokens, expected = _losses(model, stream, evidence.targets, evidence.labels_n)
    return bool(evidence.alike(expected, evidence.losses_n[tokens]).all())


def _losses(
    model: Decoder, stream: Pass, targets: Tokens, labels_n: Tokens
) -> tuple[Tokens, Values]:
    """Return the predicting tokens of a stream by number, and their losses."""
    numbers_T = stream.numbers_T.numpy()
    (at,) = np.nonzero(np.isin(numbers_T, targets))
    at = at[numbers_T[at].argsort()]
    tokens = numbers_T[at]
    with torch.no_grad():
        logits_TV = stream.change_logits(model.logits(stream.hidden(model)))
        logits_nV = logits_TV[torch.from_numpy(at)]
    losses_n: Values = -logits_nV.log_softmax(-1).numpy()[np.arange(len(at)), labels_n[tokens]]
    return tokens, losses_n


def _wrong_losses(evidence: Evidence) -> int:
    return next(
        result.wrong for result in evidence.comparison.measured.keys if result.key == "nll"
    )
