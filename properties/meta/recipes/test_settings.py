"""Settings of a step are drawn with the batch, shrink to their defaults, and need a consumer."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.candidates import locate
from harness.case import Case, parse
from harness.case.settings import chosen
from harness.case.stated import InvalidField
from harness.cli import main
from harness.compare import Verdict
from harness.failure.shrink import shrink
from harness.judge import effect
from harness.judge.effect import FEWEST, MOST, Stated
from harness.ranks.pool import RankPool
from harness.recipes import Recipe, step
from harness.recipes.families import any_family, family
from properties.helpers.judging import verdict_only
from properties.helpers.places import PLANTED, ROOT
from properties.planted.settings import OWN, RECIPE
from properties.planted.settings import right as right_step

pytest_plugins = ["properties.helpers.own_pool"]

CASE = parse("case/1 rows=5:01101,4:1011 heads=4 vocab=8 sp=4 dim=2 dtype=fp64")
ALL_CHANGED = (("order", "reversed"), ("scale", "0.5"), ("unread", "true"))


def named(name: str) -> str:
    return f"{PLANTED / 'settings.py'}:{name}"


def stating(*settings: tuple[str, str]) -> Case:
    return parse(" ".join([str(CASE), *(f"setting.{name}={value}" for name, value in settings)]))


def test_a_setting_that_a_case_leaves_out_has_the_first_value_and_others_the_stated_one() -> None:
    settings = {"scale": (1.0, 0.5), "packed": (True, False), "window": (8, None)}
    assert chosen(settings, CASE) == {"scale": 1.0, "packed": True, "window": 8}
    case = stating(("packed", "false"), ("window", "none"))
    assert chosen(settings, case) == {"scale": 1.0, "packed": False, "window": None}
    assert right_step.limits.endswith(
        "setting.scale=1.0,0.5 setting.order=given,reversed setting.unread=false,true"
    )


@pytest.mark.parametrize("settings", [(), ALL_CHANGED])
def test_plain_training_and_the_step_have_the_settings_of_the_case(
    settings: tuple[tuple[str, str], ...], pool: RankPool
) -> None:
    assert verdict_only(stating(*settings), named("right"), pool).verdict.passed


@pytest.mark.slow
def test_a_failure_shrinks_to_the_settings_that_it_needs(pool: RankPool) -> None:
    name = named("reversed_and_scaled")
    for needed in ALL_CHANGED[:2]:
        assert verdict_only(stating(needed), name, pool).verdict.passed
    failure = verdict_only(stating(*ALL_CHANGED), name, pool)
    assert failure.verdict is Verdict.DIVERGED
    small = shrink(failure, lambda case: verdict_only(case, name, pool)).smallest
    assert small.case.settings == ALL_CHANGED[:2]


def test_a_step_that_does_not_read_a_setting_of_its_loss_is_found(pool: RankPool) -> None:
    name = named("scale_ignored")
    assert verdict_only(CASE, name, pool).verdict.passed
    assert verdict_only(stating(("scale", "0.5")), name, pool).verdict is Verdict.DIVERGED


@pytest.mark.slow
def test_a_setting_of_the_model_alone_is_given_to_its_builder(pool: RankPool) -> None:
    name, of_model = named("adapters_doubled"), stating(("adapters", "true"))
    assert verdict_only(CASE, name, pool).verdict.passed
    failure = verdict_only(of_model, name, pool)
    assert failure.verdict is Verdict.DIVERGED
    small = shrink(failure, lambda case: verdict_only(case, name, pool)).smallest
    assert small.case.settings == of_model.settings


@pytest.mark.parametrize(
    ("candidate", "setting", "why"),
    [
        (named("right"), ("scale", "2.0"), "its limits are setting.scale=1.0,0.5"),
        (named("right"), ("scael", "0.5"), "it has no setting.scael"),
        ("native-gather", ("scale", "0.5"), "it has no setting.scale"),
    ],
)
def test_a_setting_or_value_that_a_step_does_not_have_is_refused(
    candidate: str, setting: tuple[str, str], why: str, pool: RankPool
) -> None:
    comparison = verdict_only(stating(setting), candidate, pool)
    assert (comparison.verdict, comparison.reason) == (Verdict.UNSUPPORTED, why)


@pytest.mark.slow
def test_only_a_setting_that_changes_no_bit_and_no_message_is_without_effect(
    pool: RankPool,
) -> None:
    candidate, stated = locate(named("right")), Stated()
    for seed in range(FEWEST):
        stated.add(parse(f"{stating(*ALL_CHANGED)}".replace("seed=0", f"seed={seed}")))
    assert list(stated.without_effect(candidate, pool)) == ["setting.unread=true"]
    few = Stated()
    few.add(stating(*ALL_CHANGED))
    assert list(few.without_effect(candidate, pool)) == []


def test_a_setting_with_an_effect_in_the_last_case_that_is_tried_has_one(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate, stated, tried = locate(named("right")), Stated(), list[Case]()
    for seed in range(MOST + 1):
        stated.add(parse(f"{stating(('unread', 'true'))}".replace("seed=0", f"seed={seed}")))

    def is_the_last(case: Case, *_: object) -> bool:
        tried.append(case)
        return len(tried) == MOST

    monkeypatch.setattr(effect, "_has_effect", is_the_last)
    assert list(stated.without_effect(candidate, pool)) == []
    assert len(set(tried)) == MOST
    monkeypatch.setattr(effect, "_has_effect", lambda *_: False)
    assert list(stated.without_effect(candidate, pool)) == ["setting.unread=true"]


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_check_draws_settings_lists_their_values_and_names_those_without_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--cases", "16", "--sp", "2", "--dp", "1", "--dtype", "fp64")
    assert main(["check", named("right"), *asked, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["candidates"].values()
    of_settings = [f"{name}={value}" for name, value in ALL_CHANGED]
    assert set(of_settings) < set(found["bounds"]["values"]["settings"])
    assert found["without_effect"] == ["setting.unread=true"]
    fixed = ("--set", "setting.unread=true", "--set", "setting.scale=1.0")
    assert main(["check", named("right"), *asked, *fixed]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "; settings order=given,reversed scale=1.0 unread=true; " in printed
    (shown,) = re.findall(
        "^exit status .*", (ROOT / "docs/your-step.md").read_text(), re.MULTILINE
    )
    as_here = {"mine.py:train_step": named("right"), "setting.packed": "setting.unread"}
    for name, other in as_here.items():
        shown = shown.replace(name, other)
    assert printed.endswith(shown)


def taking(**_: Any) -> None: ...


def taking_none(_model: Any, _batch: Any, _mesh: Any) -> None: ...


@pytest.mark.parametrize(
    ("settings", "function", "why"),
    [
        ({"a": (1,)}, taking, "a has the values 1; give two or more different ones"),
        ({"a": (1, "1")}, taking, "a has the values 1, 1; give two or more different ones"),
        ({"a": ()}, taking, "a has the values nothing; give two or more"),
        ({"a": (1, "b c")}, taking, "('a', 'b c'),): use pairs of a name and a value"),
        ({"a": ("b,c", 1)}, taking, "('a', 'b,c'),): use pairs of a name and a value"),
        ({"a-b": (1, 2)}, taking, "('a-b', '1'),): use pairs of a name and a value"),
        (OWN, taking_none, "taking_none got an unexpected keyword argument 'scale'; give it the"),
    ],
)
def test_settings_that_cannot_be_drawn_or_given_are_refused_when_the_step_is_made(
    settings: dict[str, tuple[Any, ...]], function: Callable[..., Any], why: str
) -> None:
    with pytest.raises(InvalidField) as raised:
        step(RECIPE, settings=settings)(function)
    assert why in str(raised.value)


def test_a_family_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidField, match="family llama3: the families are llama, mistral, "):
        family("llama3")
    with pytest.raises(InvalidField, match="family llama3: the families are llama, mistral, "):
        any_family()(CASE, family="llama3")


def test_a_loss_has_to_take_the_settings_of_its_recipe() -> None:
    with pytest.raises(InvalidField, match="taking_none got an unexpected keyword argument"):
        Recipe(lambda _: None, taking_none, settings=OWN)  # type: ignore[arg-type, return-value]
