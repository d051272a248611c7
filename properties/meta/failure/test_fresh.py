"""A failure that needs what ran before it says so, and its command shows it again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.case import parse
from harness.cli import main
from harness.commands.options import DIVERGED, PASSED
from harness.compare import Comparison, Look, Verdict
from harness.failure.bundle import read_bundle, write_bundle
from harness.failure.confirm import on_fresh_ranks, with_what_it_needs
from harness.ranks.pool import RankPool
from harness.report import explain

# Remembers from the first model of its process how many query heads share one kv head.
REMEMBERS = "mutants.B48"
EACH_OF_ITS_OWN = parse("case/1 rows=4:1111 heads=4/4 vocab=8 sp=1")
TWO_OF_EACH = parse("case/1 rows=3:011,4:1111 heads=4/2 vocab=8 sp=1")


@pytest.fixture(scope="module")
def one_rank() -> Iterator[RankPool]:
    with RankPool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def seen(one_rank: RankPool) -> Comparison:
    failure = on_fresh_ranks(TWO_OF_EACH, REMEMBERS, one_rank, [EACH_OF_ITS_OWN])
    assert failure.verdict is Verdict.DIVERGED
    return failure


def test_what_the_first_case_left_behind_is_found(one_rank: RankPool, seen: Comparison) -> None:
    earlier = [EACH_OF_ITS_OWN, TWO_OF_EACH]
    said = with_what_it_needs(seen, earlier, one_rank)
    assert said.looks[0].name == "stale-state"
    assert "unless its ranks ran another case before it" in explain(said)
    # The last alone would not have done it.
    assert said.before == (EACH_OF_ITS_OWN,)


def test_what_nothing_brings_back_is_not_repeatable(one_rank: RankPool, seen: Comparison) -> None:
    said = with_what_it_needs(seen, [], one_rank)
    assert said.looks[0].name == "not-repeatable"


def test_what_comes_by_chance_is_not_blamed_on_what_ran_before(one_rank: RankPool) -> None:
    chance = Comparison(
        case=TWO_OF_EACH,
        candidate=REMEMBERS,
        verdict=Verdict.DIVERGED,
        looks=(Look("not-repeatable", "each time another loss"),),
    )
    assert with_what_it_needs(chance, [EACH_OF_ITS_OWN], one_rank) is chance


def test_a_bundle_and_its_command_run_what_must_run_before(
    seen: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = write_bundle(seen, tmp_path)
    assert read_bundle(place).before == (EACH_OF_ITS_OWN,)
    assert main(["repro", str(place)]) == DIVERGED
    words = [str(EACH_OF_ITS_OWN), str(TWO_OF_EACH), "--candidate", REMEMBERS]
    replay = '"{}" "{}" {} {}'.format(*words)
    assert f"repro {replay}\n" in capsys.readouterr().out
    assert main(["repro", *words]) == DIVERGED
    assert main(["repro", *words[1:]]) == PASSED
    assert f"case    {TWO_OF_EACH}\n" in capsys.readouterr().out
