"""What the loss alone tells of the weights of tokens, where nobody knows or shows them.

The model of a candidate that is compared with itself is not ours: its gradients cannot be read.
But its loss is a sum of the losses of tokens, and some wrong counts give just that sum.
"""

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.weights import groupings
from harness.trace import GRADIENT


def told_by_loss(evidence: Evidence) -> Look:
    """Losses of tokens are right, and neither the loss nor the gradients are."""
    gradients = [key for key in evidence.wrong if key.startswith(GRADIENT)]
    every = [key for key in evidence.oracle if key.startswith(GRADIENT)]
    got, wanted = evidence.got["loss"].values, evidence.oracle["loss"].values
    said = (
        f"losses of tokens are right; the loss is {float(got):.6g} instead of "
        f"{float(wanted):.6g}, and {len(gradients)} of {len(every)} gradients are wrong"
    )
    fitting = {
        name: how
        for name, how, value in _other_means(evidence)
        if evidence.alike(value, got).all() and not evidence.alike(value, wanted).all()
    }
    if len(fitting) != 1:
        return Look("weights-wrong", said)
    ((name, how),) = fitting.items()
    return Look(name, f"{said}: it is {how}")


def _other_means(evidence: Evidence) -> list[tuple[str, str, np.ndarray]]:
    """By other counts than those of the contract: a name, how, and the loss that it gives."""
    nll = evidence.oracle["nll"]
    found = []
    for name, said, groups in groupings(evidence):
        parts = [nll.values[np.isin(evidence.targets, group)] for group in groups]
        means = [part.mean() for part in parts if len(part)]
        for count, how in (
            (len(means), "the mean of the means"),
            (len(parts), "the mean of the means, one of nothing being zero,"),
            (1, "the sum of the means"),
        ):
            if means:
                found.append((name, f"{how} {said}", np.asarray(sum(means) / count)))
    return found
