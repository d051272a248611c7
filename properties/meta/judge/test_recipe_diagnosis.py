"""A hypothesis fits only what was compared, and experiments have drawn columns."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness.candidates import locate
from harness.case import Case, parse
from harness.compare import Comparison, unsupported_comparison
from harness.compare.measurement import Divergence
from harness.compare.scale import Scale
from harness.judge import Job, recipe_diagnosis, wrong_case
from harness.judge.recipe_diagnosis import diagnose_by_recipe
from harness.judge.term_diagnosis import Guess, name_by_term
from harness.judge.wrong_case import WrongCase, fit
from harness.trace import Assembly, Trace
from properties.helpers.bundles import make_comparison

CASE = parse("case/1 rows=3:111 sp=2")


def test_a_hypothesis_that_cannot_be_compared_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object, **__: object) -> Comparison:
        return unsupported_comparison(CASE, "mine", "rounding hides it")

    monkeypatch.setattr(wrong_case, "compare", refuses)
    wrong = WrongCase(CASE, Assembly(Trace()), is_scaled=False)
    assert fit(wrong, Trace()) is None


def test_experiments_draw_the_columns_that_shrinking_made_plain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Case] = []

    class Asked(Exception):
        """Ends the experiments at the first case."""

    def ask(job: Job, _pool: object) -> None:
        asked.append(job.case)
        raise Asked

    monkeypatch.setattr(wrong_case, "ask_ranks", ask)
    failure = replace(make_comparison(), case=replace(CASE, columns="one"))
    job = Job(failure.case, locate("native-gather"))
    pool: Any = SimpleNamespace(hypotheses=lambda _: [])
    with pytest.raises(Asked):
        diagnose_by_recipe(failure, job, pool, lambda: True)
    assert [case.columns for case in asked] == ["drawn"]


def test_a_step_that_scales_all_gradients_is_not_named_by_a_term() -> None:
    wrong = WrongCase(CASE, Assembly(Trace()), is_scaled=True)

    def predict(_case: Case, _variant: str) -> Trace:
        raise AssertionError("nothing needs to be predicted")

    assert name_by_term([wrong], ["gradient-scaled: a name"], predict) is None


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("model.rotary_emb", ["positions-wrong"]),
        ("model.language_model.rotary_emb", ["positions-wrong"]),
        ("model.layers.0.self_attn.o_proj", []),
        ("loss", []),
    ],
)
def test_a_module_that_is_given_positions_alone_is_a_name_if_it_is_wrong_first(
    key: str, names: list[str]
) -> None:
    first = Divergence(key, (0,), 1.0, 2.0, 1.0, 0.1)
    failure = make_comparison(key, first=first)
    job = Job(failure.case, locate("native-gather"))
    pool: Any = SimpleNamespace()
    looks = diagnose_by_recipe(failure, job, pool, lambda: False)
    assert [look.name for look in looks] == names


@pytest.mark.parametrize(
    ("are_scaled", "names"), [((True, True, True), []), ((True, False, False), ["unclassified"])]
)
def test_one_factor_is_no_name_if_other_cases_that_go_wrong_have_none(
    are_scaled: tuple[bool, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrongs = [WrongCase(CASE, Assembly(Trace()), is_scaled=scaled) for scaled in are_scaled]
    monkeypatch.setattr(recipe_diagnosis, "wrong_cases", lambda *_: iter(wrongs))
    failure = make_comparison()
    failure = replace(failure, measured=replace(failure.measured, scale=Scale(1.00038, "")))
    pool: Any = SimpleNamespace(hypotheses=lambda _: [], run=lambda *_, **__: None)
    looks = diagnose_by_recipe(failure, Job(CASE, locate("native-gather")), pool, lambda: True)
    assert [look.name for look in looks] == names


def test_more_cases_are_tried_while_a_single_one_has_gradients_of_no_common_factor() -> None:
    forms = (True, True, False, True, False, False)
    found = [WrongCase(CASE, Assembly(Trace()), is_scaled=scaled) for scaled in forms]
    assert len(recipe_diagnosis._enough(iter(found))) == 5
    assert len(recipe_diagnosis._enough(iter(found[:2] * 3))) == 3


@pytest.mark.parametrize(
    ("hypothesis", "surplus", "is_plausible"),
    [
        ("label-lost-at-edge: a name", [-0.1, -0.1000001], True),
        ("label-lost-at-edge: a name", [-0.1, -0.3], False),
        ("label-lost-at-edge: a name", [0.01], True),
        ("label-lost-at-edge: a name", [0.0123456], False),
        ("label-lost-at-edge: a name", [], False),
        ("", [1.5e-9, 1.5e-9], True),
        ("", [2e-10, 8e-9], False),
        ("", [0.1, 0.3], True),
    ],
)
def test_what_is_fitted_to_each_case_has_to_be_one_mistake(
    hypothesis: str, surplus: list[float], *, is_plausible: bool
) -> None:
    assert Guess("kl", hypothesis, surplus).is_plausible() is is_plausible
