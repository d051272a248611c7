"""Add to a picture the labels and weights that a candidate does not emit."""

from dataclasses import replace

import numpy as np

from harness.compare.picture import FARTHEST, WITHIN, Numbers, Picture, TokenMap
from harness.diagnosis.evidence import Evidence, Mask
from harness.diagnosis.readout import Reading
from harness.trace.trace import Values

DIGITS = 6


def with_reading(picture: Picture, evidence: Evidence, reading: Reading) -> Picture:
    """Add the label and the weight of each token, as a reading of the gradients has them.

    A picture that has either from the candidate itself is returned as it is.
    """
    emitted = {numbers.key for numbers in picture.numbers if numbers.got}
    if {"labels", "weight"} & emitted:
        return picture
    expected_n = evidence.oracle["weight"].values.astype(np.float64)
    counts_n = (expected_n != 0) & (reading.weight_n != 0)
    wrong = {
        "labels": counts_n & (reading.label_n != evidence.labels_n),
        "weight": ~evidence.alike(expected_n, reading.weight_n),
    }
    inferred = {
        "labels": Numbers(
            "labels", _rounded(evidence.labels_n), _rounded(reading.label_n), inferred=True
        ),
        "weight": Numbers(
            "weight", _rounded(expected_n), _rounded(reading.weight_n), inferred=True
        ),
    }
    kept = [numbers for numbers in picture.numbers if numbers.key not in inferred]
    maps = [TokenMap(key, _signs(wrong_n)) for key, wrong_n in wrong.items() if wrong_n.any()]
    return replace(picture, maps=(*maps, *picture.maps), numbers=(*kept, *inferred.values()))


def _signs(wrong_n: Mask) -> str:
    return "".join(str(FARTHEST) if wrong else WITHIN for wrong in wrong_n)


def _rounded(values_n: Values) -> tuple[float | int, ...]:
    return tuple(
        value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
        for value in values_n.tolist()
    )
