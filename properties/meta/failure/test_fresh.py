"""A failure that needs a history or more ranks is named so, and its command shows it again."""

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
from harness.failure.confirm import find_outside_cause, judge_on_fresh_ranks
from harness.failure.shrink import Shrunk
from harness.failure.smallest import shrink_and_confirm
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.asking import planted_drift
from properties.helpers.comparisons import comparison_with
from properties.helpers.judging import evaluate, evaluate_all

# It remembers from the first model of its process how many query heads share one kv head.
REMEMBERS = "mutants.B48"
# One query head to a kv head, and two.
UNSHARED = parse("case/1 rows=4:1111 heads=4/4 vocab=8 sp=1")
SHARED = parse("case/1 rows=3:011,4:1111 heads=4/2 vocab=8 sp=1")


class OverAllRanks(LocalDialect):
    """A step that fails if there are more ranks than its case has."""

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
    """Return a failure on the second case that needs the first one before it."""
    failure = judge_on_fresh_ranks(Job(SHARED, locate(REMEMBERS)), Session(one_rank), [UNSHARED])
    assert failure.verdict is Verdict.DIVERGED
    return failure


@pytest.mark.slow
def test_state_left_by_the_first_case_is_found(one_rank: RankPool, seen: Comparison) -> None:
    found = find_outside_cause(seen, [UNSHARED, SHARED], Session(one_rank))
    assert found is not None
    assert found.inquiry.looks[0].name == "stale-state"
    assert "unless its ranks ran another case before it" in explain(found)
    # The last of the earlier cases does not bring the failure back; the first one does.
    assert found.inquiry.before == (UNSHARED,)


@pytest.mark.slow
def test_a_failure_that_never_comes_back_is_named_not_repeatable(
    one_rank: RankPool, seen: Comparison
) -> None:
    found = find_outside_cause(seen, [], Session(one_rank))
    assert found is not None
    assert found.inquiry.looks[0].name == "not-repeatable"


@pytest.mark.slow
def test_a_failure_that_needs_more_ranks_than_its_case_is_named_and_replayed_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = f"{__file__}:OVER_ALL_RANKS"
    with RankPool(2) as pool:
        failure = evaluate(SHARED, candidate, pool)
        # The earlier case also needs two ranks, but the failure does not need that case.
        earlier = [parse("case/1 rows=2:11 sp=2"), SHARED]
        found = shrink_and_confirm(failure, Session(pool), earlier).smallest
    assert (found.inquiry.called, found.inquiry.before, found.inquiry.ranks) == (
        "ranks-beside",
        (),
        2,
    )
    assert "it passes where there are 1, and not where there are 2" in explain(found)
    place = write_bundle(found, tmp_path)
    assert main(["repro", str(place), "--candidate", candidate]) == FAULT
    (words,) = re.findall("  replay  python -m harness (.*)", capsys.readouterr().out)
    assert words.endswith(f"--candidate {candidate} --ranks 2")
    assert main(shlex.split(words)) == FAULT
    assert main(shlex.split(words.removesuffix(" --ranks 2"))) == PASSED


@pytest.mark.slow
def test_a_failure_whose_smaller_case_is_not_confirmed_keeps_its_own_case(
    one_rank: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = evaluate(SHARED, "mutants.B17", one_rank)
    assert find_outside_cause(failure, [UNSHARED], Session(one_rank)) is None
    small = Shrunk(replace(failure, case=UNSHARED), 1, finished=True)
    monkeypatch.setattr("harness.failure.smallest.shrink", lambda *_, **__: small)
    monkeypatch.setattr("harness.failure.smallest.confirm", lambda *_: None)
    found = shrink_and_confirm(failure, Session(one_rank), [UNSHARED]).smallest
    assert (found.case, found.inquiry.called, found.inquiry.before) == (
        failure.case,
        failure.inquiry.called,
        (),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "called"),
    [("ROUNDS_OTHERWISE", "denominator-wrong-count"), ("RUNS_DIFFER", "not-repeatable")],
)
def test_runs_that_differ_by_rounding_alone_are_the_same_failure(
    name: str, called: str, one_rank: RankPool
) -> None:
    assert evaluate(SHARED, planted_drift(name), one_rank).inquiry.called == called


def test_a_failure_that_comes_by_chance_is_not_blamed_on_earlier_cases(
    one_rank: RankPool,
) -> None:
    chance = comparison_with(
        case=SHARED,
        candidate=REMEMBERS,
        verdict=Verdict.DIVERGED,
        seen=(Look("not-repeatable", "each time another loss"),),
    )
    assert find_outside_cause(chance, [UNSHARED], Session(one_rank)) is None


class Fussy(HeadsOfTheFirstModel):
    """The mutant of `REMEMBERS`, which also refuses batches of five tokens."""

    name = "fussy"

    def supports(self, case: Case) -> str | None:
        return "five" if case.tokens == 5 else super().supports(case)


FUSSY = Fussy()


@pytest.mark.slow
def test_a_history_leaves_out_the_cases_that_the_candidate_refuses(one_rank: RankPool) -> None:
    refused = replace(UNSHARED, rows=(*UNSHARED.rows, Row("1")))
    candidate = f"{__file__}:FUSSY"
    earlier = [refused, UNSHARED, refused]
    failure = judge_on_fresh_ranks(Job(SHARED, locate(candidate)), Session(one_rank), earlier)
    assert failure.inquiry.before == (UNSHARED,)
    found = find_outside_cause(failure, earlier, Session(one_rank))
    assert found is not None
    assert found.inquiry.called == "stale-state"
    assert found.inquiry.before == (UNSHARED,)


@pytest.mark.slow
def test_a_bundle_and_its_replay_command_run_the_history_first(
    seen: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = write_bundle(seen, tmp_path)
    assert read_bundle(place).before == (UNSHARED,)
    assert main(["repro", str(place)]) == DIVERGED
    words = [str(UNSHARED), str(SHARED), "--candidate", REMEMBERS]
    replay = '"{}" "{}" {} {}'.format(*words)
    assert f"repro {replay}\n" in capsys.readouterr().out
    assert main(["repro", *words]) == DIVERGED
    assert "  looks   stale-state: it passes unless its ranks ran an" in capsys.readouterr().out
    assert main(["repro", *words[1:]]) == PASSED
    assert f"case    {SHARED}\n" in capsys.readouterr().out


class KeepsTheCount(LocalDialect):
    """A step that counts targets once for each number of tokens, and reuses the count."""

    name = "keeps-the-count"

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], Tensor] = {}

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        counted = super().targets(micro_batches, rank)
        tokens = sum(int(batch.ids_BS.numel()) for batch in micro_batches)
        return self.known.setdefault((tokens, rank.sp.size()), counted)


KEEPS_THE_COUNT = KeepsTheCount()


@pytest.mark.slow
def test_state_left_by_the_own_step_at_sp_1_is_found_and_replayed() -> None:
    candidate = f"{__file__}:KEEPS_THE_COUNT"
    # The reference runs at sp 1 on one rank, which keeps the count of its first case.
    earlier = [parse("case/1 rows=4:1111 sp=2 heads=2"), parse("case/1 rows=5:11111 sp=2 heads=2")]
    case = parse("case/1 rows=4:0011 sp=2 heads=2")
    with RankPool(2) as pool:
        *_, seen = evaluate_all(
            [(each, candidate) for each in (*earlier, case)], pool, against=ITSELF
        )
        assert seen.verdict is Verdict.FAULT
        found = find_outside_cause(seen, earlier, Session(pool))
    assert found is not None
    assert (found.inquiry.called, found.inquiry.before) == ("stale-state", tuple(earlier[:1]))
    words = [str(earlier[0]), str(case), "--candidate", candidate, "--against", "self"]
    assert main(["repro", *words]) == FAULT
