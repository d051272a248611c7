"""Name a wrong loss by the loss alone, if the weights of tokens are unknown.

Gradients of a candidate that is compared with itself cannot be read, because its model is not
ours. But its loss is a sum of the losses of tokens, and some wrong counts give just that sum.
"""

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.weights import groupings
from harness.trace import GRADIENT


def name_loss(evidence: Evidence) -> Look:
    """Name a wrong loss whose gradients are wrong too, while the losses of tokens are right."""
    wrong = [key for key in evidence.wrong_keys if key.startswith(GRADIENT)]
    all_keys = [key for key in evidence.oracle if key.startswith(GRADIENT)]
    got, expected = evidence.got["loss"].values, evidence.oracle["loss"].values
    summary = (
        f"the loss is {float(got):.6g} instead of {float(expected):.6g}, and {len(wrong)} of "
        f"{len(all_keys)} gradients are wrong"
    )
    if "nll" not in evidence.oracle:
        modules = [key for key in evidence.oracle if evidence.oracle[key].tokens is not None]
        before = f"all {len(modules)} modules are right, and the loss that is made of them is not"
        return Look("unclassified", f"{before}: {summary}" if modules else summary)
    summary = f"losses of tokens are right; {summary}"
    fitting = {
        name: how
        for name, how, value in _other_means(evidence)
        if evidence.alike(value, got).all() and not evidence.alike(value, expected).all()
    }
    if len(fitting) != 1:
        return Look("weights-wrong", summary)
    ((name, how),) = fitting.items()
    return Look(name, f"{summary}: it is {how}")


def _other_means(evidence: Evidence) -> list[tuple[str, str, np.ndarray]]:
    """Return means by other counts than the contract's: a name, how, and the resulting loss."""
    nll = evidence.oracle["nll"]
    found = []
    for name, where, groups in groupings(evidence):
        parts = [nll.values[np.isin(evidence.targets, group)] for group in groups]
        means = [part.mean() for part in parts if len(part)]
        for count, how in (
            (len(means), "the mean of the means"),
            (len(parts), "the mean of the means, one of nothing being zero,"),
            (1, "the sum of the means"),
        ):
            if means:
                found.append((name, f"{how} {where}", np.asarray(sum(means) / count)))
    return found
