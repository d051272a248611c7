"""A step of a published library that has a recipe is held to plain training of that recipe."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.against import RECIPE
from harness.candidates import locate
from harness.candidates.published.environment import FOLDER, Environment
from harness.candidates.published.library import libraries
from harness.case import parse
from harness.cli import main
from harness.compare import Verdict
from harness.judge import Job, Session
from harness.judge.known import mark_known
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import diagnosed, evaluate
from properties.planted import with_recipe
from properties.planted.with_recipe import NAME

LINE = "case/1 rows=5:01101,4:0111:left heads=2/1 layers=1 vocab=11 sp=2 dp=1 dim=2 seed=3"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A machine on which the library of the package is installed."""
    folder = tmp_path_factory.mktemp("machine")
    with pytest.MonkeyPatch.context() as patch:
        package = with_recipe.make(folder)
        patch.syspath_prepend(package)
        patch.setenv("PYTHONPATH", str(package))
        patch.setenv(FOLDER, str(folder / "environments"))
        libraries.cache_clear()
        library = libraries()[NAME]
        Environment(library, library.pinned).install()
        yield folder
    libraries.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def pool(installed: Path) -> Iterator[RankPool]:
    del installed
    with RankPool(2, home=locate(f"{NAME}.right").home, deadline=60.0) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_a_right_step_passes_and_its_loss_and_every_gradient_are_compared(
    dtype: str, pool: RankPool
) -> None:
    comparison = evaluate(parse(f"{LINE} dtype={dtype}"), f"{NAME}.right", pool)
    assert comparison.verdict.passed, explain(comparison)
    assert comparison.against == RECIPE
    assert {result.key for result in comparison.measured.keys} == {
        *("loss", "grad.embed.weight", "grad.head.weight", "grad.head.bias")
    }


@pytest.mark.slow
def test_what_a_library_replaces_in_its_process_does_not_reach_plain_training(
    pool: RankPool,
) -> None:
    comparison = evaluate(parse(LINE), f"{NAME}.doubled", pool)
    assert comparison.verdict is Verdict.DIVERGED, explain(comparison)
    assert comparison.measured.first is not None
    assert comparison.measured.first.key == "loss"
    assert comparison.measured.loss is not None
    expected, got = comparison.measured.loss
    assert got == pytest.approx(2 * expected)


@pytest.mark.slow
def test_a_listed_bug_of_a_step_with_a_recipe_is_known_by_its_mend(pool: RankPool) -> None:
    comparison = evaluate(parse(LINE), f"{NAME}.doubled", pool)
    assert comparison.inquiry.mended is not None
    assert comparison.inquiry.mended.against == RECIPE
    assert mark_known(comparison).verdict is Verdict.KNOWN
    mended = locate(f"{NAME}.doubled+scaled")
    assert Session(pool).judge_one(Job(parse(LINE), mended)).verdict.passed


@pytest.mark.slow
def test_its_failure_is_diagnosed_by_the_recipe(pool: RankPool) -> None:
    failure = evaluate(parse(LINE), f"{NAME}.doubled", pool)
    # No mistake that a recipe predicts makes everything twice as large.
    assert diagnosed(failure, pool).inquiry.diagnosis == ()
    assert "column-misplaced: wanted is that of another row" in pool.hypotheses(
        locate(f"{NAME}.doubled")
    )


def test_plain_numbers_are_refused_where_the_recipe_draws_no_column() -> None:
    case = parse(f"{LINE} columns=one")
    assert locate(f"{NAME}.right").load().supports(case) is None
    refusal = locate(f"{NAME}.bare").load().supports(case)
    assert refusal == "columns=one: its recipe draws no column"


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "status"), [("right", 0), ("doubled", 1)])
def test_check_judges_it_as_any_other_entry(
    entry: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sp", "1,2", "--ranks", "2", "--cases", "6", "--dtype", "fp64", "--no-diagnose"]
    assert main(["check", "--candidate", f"{NAME}.{entry}", *words]) == status
    printed = capsys.readouterr().out
    assert "loss of the recipe" in printed
