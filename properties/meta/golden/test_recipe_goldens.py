"""Goldens of a step with a recipe hold what plain training of that recipe computes."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.golden import Store, examine
from properties.helpers.places import PLANTED
from properties.helpers.stores import PLACE

STYLES = f"{PLANTED / 'styles.py'}:"
MINE = STYLES + "plain_loop"
# Its limits are all ranks of the pool.
CASE = "case/1 rows=5:01101,4:0111:left heads=4/4 vocab=11 sp=2 dp=2 seed=3"
NAME = "two-rows"
pytestmark = pytest.mark.usefixtures("shared_ranks")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store with one golden of MINE's recipe."""
    place = tmp_path / "mine"
    words = ("--comment", "It is mine.", "--candidate", MINE)
    assert main(["golden", "add", NAME, CASE, *words, "--store", str(place)]) == 0
    return place


def verify(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = main(["golden", "verify", "--store", str(folder), *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_it_holds_the_loss_and_every_gradient_of_the_recipe(folder: Path) -> None:
    goldens, damages = examine(Store(folder).files())
    assert not damages
    stored = goldens[NAME].stored
    assert (stored.made["candidate"], stored.made["against"]) == (MINE, "recipe")
    assert {"loss", "grad.embed.weight", "grad.head.bias"} <= set(stored.trace)
    assert all(stored.trace[key].values.dtype == "float64" for key in stored.trace)


@pytest.mark.slow
def test_a_right_step_agrees_with_it_and_a_wrong_one_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = verify(folder, capsys, "--candidate", MINE)
    assert status == 0
    assert document["against"] == {"recipe": 5}
    assert document["unconfirmed"] == {}
    wrong = f"{MINE}__labels_lost"
    status, document = verify(folder, capsys, "--candidate", wrong)
    assert status == 1
    assert document["unconfirmed"] == {}


@pytest.mark.slow
def test_a_recipe_that_has_changed_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other parameters of the same model are trained.
    other = STYLES + "with_lora"
    status, document = verify(folder, capsys, "--candidate", other)
    assert status == 1
    assert f"{other} differs in plain training of its recipe" in document["unconfirmed"][NAME]


def test_a_golden_of_a_recipe_is_not_one_of_the_step_at_sp_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--comment", "It is mine.", "--candidate", MINE, "--against", "self")
    place = tmp_path / "new"
    assert main(["golden", "add", NAME, CASE, *words, "--store", str(place)]) == 2
    assert "the candidate has a recipe" in capsys.readouterr().err
    assert not place.exists()


@pytest.mark.slow
def test_numbers_of_our_own_model_are_not_what_a_recipe_is_held_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, document = verify(PLACE, capsys, "--candidate", MINE, "--sp", "4")
    assert document["against"].keys() == {"recipe"}
    assert document["verdicts"].keys() <= {"EQUAL", "WITHIN", "UNSUPPORTED"}
    assert status == 0
