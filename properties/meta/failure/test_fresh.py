"""A failure that needs what ran before it says so, and its command shows it again."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor
from torch import distributed as dist

from harness.against import ITSELF
from harness.candidates import Emit, Rank, locate
from harness.candidates.own.mutants.exchange import HeadsOfTheFirstModel
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.rows import Batch
from harness.case import Case, Row, parse
from harness.cli import main
from harness.commands.options import DIVERGED, FAULT, PASSED
from harness.compare import Comparison, Look, Verdict
from harness.failure.bundle import read_bundle, write_bundle
from harness.failure.confirm import on_fresh_ranks, with_what_it_needs
from harness.failure.shrink import Shrunk
from harness.failure.smallest import smallest
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate, evaluate_all

# Remembers from the first model of its process how many query heads share one kv head.
REMEMBERS = "mutants.B48"
EACH_OF_ITS_OWN = parse("case/1 rows=4:1111 heads=4/4 vocab=8 sp=1")
TWO_OF_EACH = parse("case/1 rows=3:011,4:1111 heads=4/2 vocab=8 sp=1")


class OverAllRanks(LocalDialect):
    """It sends over torch's default group."""

    name = "over-all-ranks"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        if dist.get_world_size() != case.ranks:
            raise RuntimeError("I waited for all")
        super().run(case, rank, emit)


OVER_ALL_RANKS = OverAllRanks()


@pytest.fixture(scope="module")
def one_rank() -> Iterator[RankPool]:
    with RankPool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def seen(one_rank: RankPool) -> Comparison:
    failure = on_fresh_ranks(
        Job(TWO_OF_EACH, locate(REMEMBERS)), Session(one_rank), [EACH_OF_ITS_OWN]
    )
    assert failure.verdict is Verdict.DIVERGED
    return failure


@pytest.mark.slow
def test_what_the_first_case_left_behind_is_found(one_rank: RankPool, seen: Comparison) -> None:
    earlier = [EACH_OF_ITS_OWN, TWO_OF_EACH]
    said = with_what_it_needs(seen, earlier, Session(one_rank))
    assert said is not None
    assert said.looks[0].name == "stale-state"
    assert "unless its ranks ran another case before it" in explain(said)
    # The last alone would not have done it.
    assert said.before == (EACH_OF_ITS_OWN,)


def test_what_nothing_brings_back_is_not_repeatable(one_rank: RankPool, seen: Comparison) -> None:
    said = with_what_it_needs(seen, [], Session(one_rank))
    assert said is not None
    assert said.looks[0].name == "not-repeatable"


@pytest.mark.slow
def test_ranks_that_have_no_part_in_a_case_are_told_of_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = f"{__file__}:OVER_ALL_RANKS"
    with RankPool(2) as pool:
        failure = evaluate(TWO_OF_EACH, candidate, pool)
        # What ran before is not to blame, though the ranks that it needed were those two.
        said = smallest(
            failure, Session(pool), [parse("case/1 rows=2:11 sp=2"), TWO_OF_EACH]
        ).smallest
    assert (said.called, said.before, said.ranks) == ("ranks-beside", (), 2)
    assert "it passes where there are 1, and not where there are 2" in explain(said)
    place = write_bundle(said, tmp_path)
    assert main(["repro", str(place), "--candidate", candidate]) == FAULT
    (words,) = re.findall("  replay  python -m harness (.*)", capsys.readouterr().out)
    assert words.endswith(f"--candidate {candidate} --ranks 2")
    assert main(shlex.split(words)) == FAULT
    assert main(shlex.split(words.removesuffix(" --ranks 2"))) == PASSED


@pytest.mark.slow
def test_a_failure_of_which_only_a_smaller_case_was_not_one_is_shown_as_it_was(
    one_rank: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = evaluate(TWO_OF_EACH, "mutants.B17", one_rank)
    assert with_what_it_needs(failure, [EACH_OF_ITS_OWN], Session(one_rank)) is None
    small = Shrunk(replace(failure, case=EACH_OF_ITS_OWN), 1, finished=True)
    monkeypatch.setattr("harness.failure.smallest.shrink", lambda *_, **__: small)
    monkeypatch.setattr("harness.failure.smallest.confirmed", lambda *_: None)
    said = smallest(failure, Session(one_rank), [EACH_OF_ITS_OWN]).smallest
    assert (said.case, said.called, said.before) == (failure.case, failure.called, ())


def test_what_comes_by_chance_is_not_blamed_on_what_ran_before(one_rank: RankPool) -> None:
    chance = Comparison(
        case=TWO_OF_EACH,
        candidate=REMEMBERS,
        verdict=Verdict.DIVERGED,
        seen=(Look("not-repeatable", "each time another loss"),),
    )
    assert with_what_it_needs(chance, [EACH_OF_ITS_OWN], Session(one_rank)) is None


class Fussy(HeadsOfTheFirstModel):
    """The same, and it refuses batches of five tokens."""

    name = "fussy"

    def supports(self, case: Case) -> str | None:
        return "five" if case.tokens == 5 else super().supports(case)


FUSSY = Fussy()


@pytest.mark.slow
def test_what_a_candidate_refused_did_not_run_before(one_rank: RankPool) -> None:
    refused = replace(EACH_OF_ITS_OWN, rows=(*EACH_OF_ITS_OWN.rows, Row("1")))
    candidate = f"{__file__}:FUSSY"
    earlier = [refused, EACH_OF_ITS_OWN, refused]
    failure = on_fresh_ranks(Job(TWO_OF_EACH, locate(candidate)), Session(one_rank), earlier)
    assert failure.before == (EACH_OF_ITS_OWN,)
    said = with_what_it_needs(failure, earlier, Session(one_rank))
    assert said is not None
    assert said.called == "stale-state"
    assert said.before == (EACH_OF_ITS_OWN,)


@pytest.mark.slow
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
    assert "  looks   stale-state: it passes unless its ranks ran an" in capsys.readouterr().out
    assert main(["repro", *words[1:]]) == PASSED
    assert f"case    {TWO_OF_EACH}\n" in capsys.readouterr().out


class KeepsTheCount(LocalDialect):
    """How many targets the first batch of so many tokens had counts for all others of as many."""

    name = "keeps-the-count"

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], Tensor] = {}

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        counted = super().targets(micro_batches, rank)
        tokens = sum(int(batch.ids_BS.numel()) for batch in micro_batches)
        return self.known.setdefault((tokens, rank.sp.size()), counted)


KEEPS_THE_COUNT = KeepsTheCount()


@pytest.mark.slow
def test_what_its_own_step_at_sp_1_left_behind_is_found_and_shown_again() -> None:
    candidate = f"{__file__}:KEEPS_THE_COUNT"
    # What is compared with it kept the count of the first; its peers see nothing of that.
    earlier = [parse("case/1 rows=4:1111 sp=2 heads=2"), parse("case/1 rows=5:11111 sp=2 heads=2")]
    case = parse("case/1 rows=4:0011 sp=2 heads=2")
    with RankPool(2) as pool:
        *_, seen = evaluate_all(
            [(each, candidate) for each in (*earlier, case)], pool, against=ITSELF
        )
        assert seen.verdict is Verdict.FAULT
        said = with_what_it_needs(seen, earlier, Session(pool))
    assert said is not None
    assert (said.called, said.before) == ("stale-state", tuple(earlier[:1]))
    words = [str(earlier[0]), str(case), "--candidate", candidate, "--against", "self"]
    assert main(["repro", *words]) == FAULT
