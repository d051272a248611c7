"""What a candidate does not show of its tokens, for a reader: read off its gradients."""

from dataclasses import replace

import numpy as np

from harness.compare.picture import FARTHEST, WITHIN, Numbers, Picture, TokenMap
from harness.diagnosis.evidence import Evidence, Mask
from harness.diagnosis.readout import Reading
from harness.trace.trace import Values

DIGITS = 6


def with_what_gradients_tell(picture: Picture, evidence: Evidence, reading: Reading) -> Picture:
    """Add the label and the weight that each token was trained on."""
    shown = {each.key for each in picture.numbers if each.got}
    if {"labels", "weight"} & shown:
        return picture
    expected_n = evidence.oracle["weight"].values.astype(np.float64)
    counts_n = (expected_n != 0) & (reading.weight_n != 0)
    wrong = {
        "labels": counts_n & (reading.label_n != evidence.labels_n),
        "weight": ~evidence.alike(expected_n, reading.weight_n),
    }
    inferred = {
        "labels": Numbers(
            "labels", _told(evidence.labels_n), _told(reading.label_n), inferred=True
        ),
        "weight": Numbers("weight", _told(expected_n), _told(reading.weight_n), inferred=True),
    }
    kept = [each for each in picture.numbers if each.key not in inferred]
    maps = [TokenMap(key, _signs(wrong_n)) for key, wrong_n in wrong.items() if wrong_n.any()]
    return replace(picture, maps=(*maps, *picture.maps), numbers=(*kept, *inferred.values()))


def _signs(wrong_n: Mask) -> str:
    return "".join(str(FARTHEST) if wrong else WITHIN for wrong in wrong_n)


def _told(values_n: Values) -> tuple[float | int, ...]:
    return tuple(
        value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
        for value in values_n.tolist()
    )
