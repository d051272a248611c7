"""What went wrong, told by experiments: predict, test, eliminate.

One case fits many names: a mask without a zero is the same when it is shifted. So the candidate is
run on other small cases near the failing one, and a name has to hold on all of them that go wrong.
What is wrong with a forward pass is told by plain training with one thing changed, which must give
the same wrong losses; what is wrong with the loss is read off the gradients.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from harness.case import Case
from harness.compare import Comparison, Look, Verdict
from harness.diagnosis.backward import told_by_backward
from harness.diagnosis.elimination import Decide, Key, name_forward, tells_apart
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.experiments import neighbours, plainer, with_other_heads
from harness.diagnosis.forward import Forward, passes
from harness.diagnosis.naming import roots
from harness.diagnosis.readout import Reading, looks_of_loss, read_loss
from harness.diagnosis.rounding import is_rounding
from harness.diagnosis.shares import told_by_shares
from harness.diagnosis.unexplained import excluded, gone

# The candidate runs a case; nothing where no numbers came of it.
Ask = Callable[[Case], Evidence | None]

# So many, and more of them as long as few go wrong: two may have a wrong name in common.
EXPERIMENTS, MOST_EXPERIMENTS, ENOUGH = 20, 60, 6
# After so many that all pass, the next ones have more of what the failing case has.
PATIENCE = 20
# From so many for each number of heads, one is chosen that tells hypotheses apart.
CHOICE = 4
# What a tensor alone says where it says nothing of a cause.
UNTOLD = ("unclassified", "low-precision")
# What the ranks' shares of gradients may explain.
OF_SHARES = ("gradient-partial", "gradient-missing")
# What may be said of much else: a name that says more goes first.
GENERAL = (
    *UNTOLD,
    "mask-replaced",
    "label-replaced",
    "denominator-wrong-count",
    "gradient-partial",
)


def diagnose(failure: Comparison, ask: Ask) -> tuple[Look, ...]:
    """The root and what else is seen; nothing where experiments do not show the failure again."""
    changed, experiments = perform(failure, ask)
    wrong = [evidence for evidence in experiments if _is_wrong(evidence)]
    if sum(_shows(failure, evidence) for evidence in wrong) < 2:
        return ()
    looks = conclude(experiments, _decide(failure, changed, ask))
    if not looks:
        return ()
    root, *others = looks
    if root.name == "low-precision" and not root.how:
        root = _of_small_errors(root, wrong, ask)
    if root.name == "unclassified":
        root = replace(root, why="; ".join(filter(None, (root.why, gone(wrong, ask)))))
    return root, *others


def _of_small_errors(root: Look, wrong: Sequence[Evidence], ask: Ask) -> Look:
    """A name that size alone would give is kept only if errors come and go as rounding does."""
    rounding = is_rounding(wrong, ask)
    if rounding:
        said = "errors are others when weights move a little, as after rounding"
        return replace(root, why=f"{root.why}; {said}")
    of_losses = any("nll" in evidence.wrong for evidence in wrong)
    said = "errors are small, but the same when weights move a little: no rounding"
    if rounding is None:
        said = "errors are small, and nobody could say whether they are rounding"
    name = "unclassified" if of_losses else "gradient-partial"
    return Look(name, f"{root.why}; {said}")


def perform(failure: Comparison, ask: Ask) -> tuple[dict[str, Any], list[Evidence]]:
    """Experiments on the plainest cases that fail so; and what of the case they change."""
    found: list[Evidence] = []
    changed: dict[str, Any] = {}
    for changed in plainer(failure.case):
        found, unanswered = [], 0
        for near in islice(neighbours(failure.case, changed), MOST_EXPERIMENTS):
            wrong = sum(map(_is_wrong, found))
            if len(found) >= EXPERIMENTS and wrong >= ENOUGH:
                break
            evidence = ask(near)
            if evidence is None or (_is_wrong(evidence) and not _may_be(failure, evidence)):
                unanswered += 1
            else:
                found.append(evidence)
            if unanswered >= PATIENCE or (len(found) >= PATIENCE and not wrong):
                break
        if sum(_shows(failure, evidence) for evidence in found) > 1:
            break
    return changed, found


def _decide(failure: Comparison, changed: dict[str, Any], ask: Ask) -> Decide:
    """Runs such cases as tell hypotheses apart, one for each call."""
    cases = (
        near
        for case in with_other_heads(failure.case)
        for near in islice(neighbours(case, changed), MOST_EXPERIMENTS, MOST_EXPERIMENTS + CHOICE)
    )

    def decide(keys: Collection[Key]) -> Evidence | None:
        for case in cases:
            evidence = ask(case) if tells_apart(case, keys) else None
            if evidence and (not _is_wrong(evidence) or _may_be(failure, evidence)):
                return evidence.of_required
        return None

    return decide


def _may_be(failure: Comparison, seen: Evidence) -> bool:
    """Whether it is the same again. A candidate may have another bug, that gives NaN or does not.

    Were they taken together, no name would hold on both.
    """
    is_finite = all(np.isfinite(seen.got[key].values).all() for key in seen.of_required.wrong)
    return is_finite != any(look.name == "non-finite" for look in failure.seen)


def _shows(failure: Comparison, seen: Evidence) -> bool:
    """Whether losses of tokens are wrong in it as well; after a wrong step, they always are."""
    losses = any(result.key == "nll" and result.wrong for result in failure.keys)
    needed = losses and failure.case.steps == 1
    return _is_wrong(seen) and ("nll" in seen.wrong or not needed)


def conclude(experiments: Sequence[Evidence], decide: Decide) -> tuple[Look, ...]:
    """What holds on all that went wrong; asked of losses and gradients first, which all show."""
    wrong = [evidence for evidence in experiments if _is_wrong(evidence)]
    right = [evidence for evidence in experiments if evidence.comparison.verdict.passed]
    required = [evidence.of_required for evidence in wrong]
    told = [_looks(evidence) for evidence in required]
    pairs = zip(required, told, strict=True)
    of_losses = [(each, looks) for each, looks in pairs if "nll" in each.wrong]
    untold = sum(looks[0].name in UNTOLD for _, looks in of_losses)
    # A few wrong losses may look like many things; labels explain them all or none.
    looks: tuple[Look, ...] = ()
    not_so = ""
    if 2 * untold > len(of_losses):
        unexplained = [each for each, _ in of_losses]
        looks = name_forward(unexplained, right, len(told), decide)
        not_so = "" if looks else excluded(unexplained)
    looks = looks or _in_common(told, right)
    if looks and looks[0].name in OF_SHARES:
        # Where all follow from some weights, these have been told.
        stray = [each for each in required if not each.comparison.misfits and not read(each)]
        said = told_by_backward(stray) or told_by_shares(stray)
        looks = (replace(looks[0], why=f"{said}; {looks[0].why}"),) if said else looks
    if looks and looks[0].name not in UNTOLD:
        return looks
    looks = _in_common([roots(evidence) for evidence in wrong], right) or looks
    if not_so and looks and looks[0].name == "unclassified":
        looks = (replace(looks[0], why=f"{looks[0].why}; {not_so}"), *looks[1:])
    return looks


def _in_common(told: Sequence[Sequence[Look]], right: Sequence[Evidence]) -> tuple[Look, ...]:
    """Choose the name that all cases may have."""
    counts = Counter(key for looks in told for key in {_same(look) for look in looks})
    kept = [look for looks in told for look in looks if look.shown]
    if not kept:
        return ()
    # Take one that holds everywhere, or else the one that holds most often.
    everywhere = [look for look in kept if counts[_same(look)] == len(told)]
    if everywhere:
        root = min(everywhere, key=lambda x: (x.name in GENERAL, _is_doubtful(x.name, right)))
    else:
        root = max(kept, key=lambda look: counts[_same(look)])
    of = f"{counts[_same(root)]} of {len(told)} cases that go wrong"
    said = f"in {of}" if root.how else f"in one of them; called so in {of}"
    return (replace(root, why=f"{root.how or root.why}, {said}"),)


def _same(look: Look) -> tuple[str, str]:
    """What of it is the same on every case."""
    return look.name, look.how


def _is_wrong(evidence: Evidence) -> bool:
    return evidence.comparison.verdict is Verdict.DIVERGED


def _looks(evidence: Evidence) -> list[Look]:
    """All that this case alone may be called, what says the most first."""
    misfits = evidence.comparison.misfits
    if misfits or "nll" in evidence.wrong or not evidence.wrong:
        return roots(evidence) or [Look("unclassified", "nothing that must be shown is wrong")]
    reading = read(evidence)
    return (reading and looks_of_loss(evidence, reading)) or roots(evidence)


def read(evidence: Evidence) -> Reading | None:
    """Weights and labels from which all gradients follow, if there are such."""
    forward = Forward(evidence.case, passes(evidence.case, evidence.owner_n))
    reading = read_loss(forward, evidence.got, evidence.labels_n)
    follows = reading is not None and reading.is_of_labels and not reading.unexplained
    return reading if follows else None


def _is_doubtful(name: str, right: Sequence[Evidence]) -> bool:
    """Whether a case that went right would have gone wrong."""
    sizes = {"gradient-times-sp": "sp", "gradient-over-sp": "sp"}
    sizes |= {"gradient-times-dp": "dp", "gradient-over-dp": "dp"}
    return name in sizes and any(getattr(each.case, sizes[name]) > 1 for each in right)
