"""Failures made by hand, for tests of bundles; no rank runs and no model is built."""

from typing import Any

import numpy as np

from harness.case import parse
from harness.compare import Comparison, KeyResult, Verdict
from harness.compare.differing import Kept
from properties.helpers.comparisons import comparison_with

LINE = "case/1 rows=5:11111,2:11 heads=2/2 layers=1 vocab=16 sp=2 dp=1 dim=4 dtype=fp64 seed=0"
CASE = parse(LINE)
# The files of a bundle.
FILES = {"failure.json", "explanation.txt", "tensors.safetensors", "ranks.txt"}


def wrong(key: str, *shape: int, rows: int = 1) -> tuple[Any, ...]:
    """Make a tensor with some wrong rows, in the form in which the judge keeps it."""
    expected = np.arange(float(np.prod(shape))).reshape(shape)
    got = expected.copy()
    got[:rows] += 1.0
    return key, expected, got, np.flatnonzero(expected != got), None


def make_comparison(*keys: str, **fields: Any) -> Comparison:
    """Make a comparison that diverges in the given keys."""
    kept = Kept()
    for key in keys:
        kept.add(*wrong(key, 3, 2))
    results = tuple(KeyResult(key, 6, 2, 9.0) for key in keys)
    fields = {"verdict": Verdict.DIVERGED, "keys": results, **fields}
    return comparison_with(case=CASE, candidate="planted", differing=tuple(kept.tensors), **fields)
