"""A hypothesis fits a wrong case only if gradients were compared."""

import pytest

from harness.case import parse
from harness.compare import Comparison, unsupported_comparison
from harness.judge import recipe_diagnosis
from harness.judge.recipe_diagnosis import WrongCase, _fit
from harness.trace import Assembly, Trace

CASE = parse("case/1 rows=3:111 sp=2")


def test_a_hypothesis_that_cannot_be_compared_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object, **__: object) -> Comparison:
        return unsupported_comparison(CASE, "mine", "rounding hides it")

    monkeypatch.setattr(recipe_diagnosis, "compare", refuses)
    wrong = WrongCase(CASE, Assembly(Trace()), is_scaled=False)
    assert _fit(wrong, Trace()) is None
