"""Name a failure by experiments: predict, test, eliminate.

One case fits many names: a mask without a zero is the same when it is shifted. So the candidate
runs other small cases near the failing one, and a name has to hold on all of them that go wrong.
A wrong forward pass is explained by plain training with one thing changed, which must give the
same wrong losses. A wrong loss is read off the gradients.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from harness.case import Case
from harness.compare import Comparison, Look, Verdict
from harness.diagnosis.backward import describe_backward
from harness.diagnosis.elimination import RunDecisiveCase, VariantKey, is_decisive, name_forward
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.experiments import neighbours, simplifications, with_other_heads
from harness.diagnosis.forward import Forward, plain_passes
from harness.diagnosis.naming import roots
from harness.diagnosis.readout import Reading, looks_of_loss, read_loss
from harness.diagnosis.rounding import is_rounding
from harness.diagnosis.shares import describe_shares
from harness.diagnosis.unexplained import describe_excluded, describe_when_right

# Runs the candidate on a case; None if the run gave no numbers.
Ask = Callable[[Case], Evidence | None]

# There are more experiments while few go wrong, because two may have a wrong name in common.
EXPERIMENTS, MOST_EXPERIMENTS, ENOUGH_WRONG = 20, 60, 6
# After this many cases that pass, or that cannot be used, cases are made less plain.
PATIENCE = 20
# For each number of heads, the decisive cases are among this many.
CASES_PER_HEADS = 4
# Names that give no cause.
WITHOUT_CAUSE = ("unclassified", "low-precision")
# Names that the ranks' shares of gradients may explain.
EXPLAINED_BY_SHARES = ("gradient-partial", "gradient-missing")
# Names that fit many other bugs as well: a more specific name is preferred.
GENERAL = (
    *WITHOUT_CAUSE,
    "mask-replaced",
    "label-replaced",
    "denominator-wrong-count",
    "gradient-partial",
)


def diagnose(failure: Comparison, ask: Ask) -> tuple[Look, ...]:
    """Return the root and what else is wrong; empty if experiments do not show the failure."""
    changed, experiments = run_experiments(failure, ask)
    wrong = [evidence for evidence in experiments if _is_wrong(evidence)]
    if sum(_shows_failure(failure, evidence) for evidence in wrong) < 2:
        return ()
    looks = conclude(experiments, _decisive_case_runner(failure, changed, ask))
    if not looks:
        return ()
    root, *others = looks
    if root.name == "low-precision" and not root.how:
        root = _check_rounding(root, wrong, ask)
    if root.name == "unclassified":
        root = replace(
            root, why="; ".join(filter(None, (root.why, describe_when_right(wrong, ask))))
        )
    return root, *others


def _check_rounding(root: Look, wrong: Sequence[Evidence], ask: Ask) -> Look:
    """Keep a name that rests on small errors only if the errors change as rounding does."""
    rounding = is_rounding(wrong, ask)
    if rounding:
        why = "errors are others when weights move a little, as after rounding"
        return replace(root, why=f"{root.why}; {why}")
    of_losses = any("nll" in evidence.wrong_keys for evidence in wrong)
    why = "errors are small, but the same when weights move a little: no rounding"
    if rounding is None:
        why = "errors are small and may be rounding"
    name = "unclassified" if of_losses else "gradient-partial"
    return Look(name, f"{root.why}; {why}")


def run_experiments(failure: Comparison, ask: Ask) -> tuple[dict[str, Any], list[Evidence]]:
    """Run the plainest cases that show the failure; also return which fields they change."""
    found: list[Evidence] = []
    changed: dict[str, Any] = {}
    for changed in simplifications(failure.case):
        found, unusable = [], 0
        for case in islice(neighbours(failure.case, changed), MOST_EXPERIMENTS):
            wrong = sum(map(_is_wrong, found))
            if len(found) >= EXPERIMENTS and wrong >= ENOUGH_WRONG:
                break
            evidence = ask(case)
            if evidence is None or (_is_wrong(evidence) and not _is_as_finite(failure, evidence)):
                unusable += 1
            else:
                found.append(evidence)
            if unusable >= PATIENCE or (len(found) >= PATIENCE and not wrong):
                break
        if sum(_shows_failure(failure, evidence) for evidence in found) > 1:
            break
    return changed, found


def _decisive_case_runner(
    failure: Comparison, changed: dict[str, Any], ask: Ask
) -> RunDecisiveCase:
    """Return a function that runs, at each call, one case that decides between variants."""
    cases = (
        near
        for case in with_other_heads(failure.case)
        for near in islice(
            neighbours(case, changed), MOST_EXPERIMENTS, MOST_EXPERIMENTS + CASES_PER_HEADS
        )
    )

    def run_decisive_case(keys: Collection[VariantKey]) -> Evidence | None:
        for case in cases:
            evidence = ask(case) if is_decisive(case, keys) else None
            if evidence and (not _is_wrong(evidence) or _is_as_finite(failure, evidence)):
                return evidence.of_required
        return None

    return run_decisive_case


def _is_as_finite(failure: Comparison, evidence: Evidence) -> bool:
    """Return whether both the failure and the evidence have non-finite numbers, or neither.

    If only one of them has, the candidate has a second bug, and no name would hold on both.
    """
    is_finite = all(
        np.isfinite(evidence.got[key].values).all() for key in evidence.of_required.wrong_keys
    )
    return is_finite != any(look.name == "non-finite" for look in failure.inquiry.seen)


def _shows_failure(failure: Comparison, evidence: Evidence) -> bool:
    """Return whether it is wrong, also in losses of tokens if the failure is.

    After a wrong step all losses are wrong, so a failure of several steps needs none.
    """
    has_wrong_losses = any(
        result.key == "nll" and result.wrong for result in failure.measured.keys
    )
    needs_losses = has_wrong_losses and failure.case.steps == 1
    return _is_wrong(evidence) and ("nll" in evidence.wrong_keys or not needs_losses)


def conclude(
    experiments: Sequence[Evidence], run_decisive_case: RunDecisiveCase
) -> tuple[Look, ...]:
    """Return the names that hold on all experiments that went wrong.

    Required keys are used first, because every candidate emits them.
    """
    wrong = [evidence for evidence in experiments if _is_wrong(evidence)]
    right = [evidence for evidence in experiments if evidence.comparison.verdict.passed]
    required = [evidence.of_required for evidence in wrong]
    looks_by_case = [_looks_of_case(evidence) for evidence in required]
    with_wrong_losses = [
        (evidence, looks)
        for evidence, looks in zip(required, looks_by_case, strict=True)
        if "nll" in evidence.wrong_keys
    ]
    without_cause = sum(looks[0].name in WITHOUT_CAUSE for _, looks in with_wrong_losses)
    looks: tuple[Look, ...] = ()
    excluded = ""
    # A few wrong losses may fit many names; labels explain either all cases or none.
    if 2 * without_cause > len(with_wrong_losses):
        unexplained = [evidence for evidence, _ in with_wrong_losses]
        looks = name_forward(unexplained, right, len(wrong), run_decisive_case)
        excluded = "" if looks else describe_excluded(unexplained)
    looks = looks or _choose_common(looks_by_case, right)
    if looks and looks[0].name in EXPLAINED_BY_SHARES:
        # If all gradients follow from some weights, the looks describe these already.
        stray = [e for e in required if not e.comparison.measured.misfits and not read_weights(e)]
        description = describe_backward(stray) or describe_shares(stray)
        if description:
            looks = (replace(looks[0], why=f"{description}; {looks[0].why}"),)
    if looks and looks[0].name not in WITHOUT_CAUSE:
        return looks
    looks = _choose_common([roots(evidence) for evidence in wrong], right) or looks
    if excluded and looks and looks[0].name == "unclassified":
        looks = (replace(looks[0], why=f"{looks[0].why}; {excluded}"), *looks[1:])
    return looks


def _choose_common(
    looks_by_case: Sequence[Sequence[Look]], right: Sequence[Evidence]
) -> tuple[Look, ...]:
    """Choose a name that fits all cases, or else the one that fits most."""
    counts = Counter(key for looks in looks_by_case for key in {_key(look) for look in looks})
    shown = [look for looks in looks_by_case for look in looks if look.shown]
    if not shown:
        return ()
    everywhere = [look for look in shown if counts[_key(look)] == len(looks_by_case)]
    if everywhere:
        root = min(everywhere, key=lambda x: (x.name in GENERAL, _is_doubtful(x.name, right)))
    else:
        root = max(shown, key=lambda look: counts[_key(look)])
    of = f"{counts[_key(root)]} of {len(looks_by_case)} cases that go wrong"
    where = f"in {of}" if root.how else f"in one of them; called so in {of}"
    return (replace(root, why=f"{root.how or root.why}, {where}"),)


def _key(look: Look) -> tuple[str, str]:
    """Return the part of a look that does not depend on the case."""
    return look.name, look.how


def _is_wrong(evidence: Evidence) -> bool:
    return evidence.comparison.verdict is Verdict.DIVERGED


def _looks_of_case(evidence: Evidence) -> list[Look]:
    """Return every name that fits this case alone, the best first."""
    misfits, wrong = evidence.comparison.measured.misfits, evidence.wrong_keys
    if misfits or "nll" in wrong or not wrong:
        return roots(evidence) or [Look("unclassified", "nothing that must be shown is wrong")]
    reading = read_weights(evidence)
    return (reading and looks_of_loss(evidence, reading)) or roots(evidence)


def read_weights(evidence: Evidence) -> Reading | None:
    """Return the weights and labels from which all gradients follow; None if there are none."""
    forward = Forward(evidence.case, plain_passes(evidence.case, evidence.owner_n))
    reading = read_loss(forward, evidence.got, evidence.labels_n)
    follows = reading is not None and reading.has_labels and not reading.unexplained
    return reading if follows else None


def _is_doubtful(name: str, right: Sequence[Evidence]) -> bool:
    """Return whether a case that went right would have gone wrong with this bug."""
    sizes = {"gradient-times-sp": "sp", "gradient-over-sp": "sp"}
    sizes |= {"gradient-times-dp": "dp", "gradient-over-dp": "dp"}
    return name in sizes and any(getattr(e.case, sizes[name]) > 1 for e in right)
