"""A hypothesis fits only what was compared, and experiments have drawn columns."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness.candidates import locate
from harness.case import Case, parse
from harness.compare import Comparison, unsupported_comparison
from harness.judge import Job, recipe_diagnosis
from harness.judge.recipe_diagnosis import WrongCase, _fit, diagnose_by_recipe
from harness.trace import Assembly, Trace
from properties.helpers.bundles import make_comparison

CASE = parse("case/1 rows=3:111 sp=2")


def test_a_hypothesis_that_cannot_be_compared_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object, **__: object) -> Comparison:
        return unsupported_comparison(CASE, "mine", "rounding hides it")

    monkeypatch.setattr(recipe_diagnosis, "compare", refuses)
    wrong = WrongCase(CASE, Assembly(Trace()), is_scaled=False)
    assert _fit(wrong, Trace()) is None


def test_experiments_draw_the_columns_that_shrinking_made_plain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Case] = []

    class Asked(Exception):
        """Ends the experiments at the first case."""

    def ask(job: Job, _pool: object) -> None:
        asked.append(job.case)
        raise Asked

    monkeypatch.setattr(recipe_diagnosis, "ask_ranks", ask)
    failure = replace(make_comparison(), case=replace(CASE, columns="one"))
    job = Job(failure.case, locate("native-gather"))
    pool: Any = SimpleNamespace(hypotheses=lambda _: [])
    with pytest.raises(Asked):
        diagnose_by_recipe(failure, job, pool, lambda: True)
    assert [case.columns for case in asked] == ["drawn"]
