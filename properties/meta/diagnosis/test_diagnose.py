"""Experiments name a failure from required keys alone."""

import math
import re
from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest

from harness.candidates import locate
from harness.candidates.own.mutants import BANK
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard
from harness.candidates.required import only_required
from harness.case import Case, Dtype, parse
from harness.compare import Comparison, Verdict, alike
from harness.compare.measurement import KeyResult
from harness.diagnosis import Evidence, diagnose
from harness.diagnosis.experiments import neighbours, simplifications
from harness.diagnosis.forward import Forward, plain_passes
from harness.diagnosis.readout import read_loss
from harness.judge import Session, add_diagnosis
from harness.judge.diagnosed import MOST_RUNS, Asked
from harness.judge.stages import reference_traces
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.comparisons import comparison_with
from properties.helpers.judging import diagnosed, evaluate
from properties.planted import order, scratch

PLACE = f"{scratch.__file__}:"
ROWS = "rows=7:0011111,4:0111:left,6:110111 heads=4/2 layers=1 vocab=32"
CASES = (
    parse(f"case/1 {ROWS} sp=2 dp=1 window=3 seed=5"),
    parse(f"case/1 {ROWS} sp=4 dp=1 micro=3 seed=6"),
    replace(parse(f"case/1 {ROWS} sp=1 dp=1 seed=7"), dp=3),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_written_from_scratch_is_right(case: Case, harness_pool: RankPool) -> None:
    assert evaluate(case, f"{PLACE}SCRATCH", harness_pool).verdict.passed


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", scratch.WRONG, ids=lambda kind: kind.__name__)
def test_each_wrong_version_of_the_step_gets_its_name(
    kind: type[scratch.Scratch], harness_pool: RankPool
) -> None:
    seen = evaluate(CASES[0], f"{PLACE}{kind.__name__.upper()}", harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert root.name == scratch.WRONG[kind], root


@pytest.mark.slow
def test_a_slow_machine_finds_the_same_name(harness_pool: RankPool) -> None:
    """On this clock each run takes two seconds, and all of them together more than ten."""
    seen, times = evaluate(CASES[0], f"{PLACE}NOWINDOW", harness_pool), count(0, 2)
    usual = diagnosed(seen, harness_pool)
    assert usual.inquiry.called == "window-ignored"
    assert (
        add_diagnosis(seen, Session(harness_pool), clock=lambda: next(times)).inquiry.diagnosis
        == usual.inquiry.diagnosis
    )


def test_a_candidate_is_not_run_more_often_than_the_limit(harness_pool: RankPool) -> None:
    ask = Asked(locate(f"{PLACE}SCRATCH"), Session(harness_pool), math.inf, runs=MOST_RUNS - 1)
    assert ask(CASES[0]) is not None
    assert ask(CASES[0]) is None


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "is_decided"), [("KEYSTILED", True), ("ODDOFMANY", False)])
def test_further_cases_decide_between_hypotheses_as_long_as_one_of_them_holds(
    kind: str, is_decided: bool, harness_pool: RankPool
) -> None:
    case = parse(f"case/1 {ROWS} sp=4 dp=1 seed=5")
    (root, *_) = diagnosed(
        evaluate(case, f"{PLACE}{kind}", harness_pool), harness_pool
    ).inquiry.diagnosis
    assert root.name == "kv-repeat"
    assert (
        bool(re.search(r"and the losses of \d more, which others do not", root.why)) == is_decided
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[:2], ids=str)
@pytest.mark.parametrize(
    ("candidate", "start"),
    [
        ("IN_TURN", "tokens are dealt in turn, the mask is not: "),
        ("FROM_EITHER_END", "tokens and rows are dealt without padding, the mask is not: "),
    ],
)
def test_a_mask_of_tokens_in_another_order_is_named(
    candidate: str, start: str, case: Case, harness_pool: RankPool
) -> None:
    seen = evaluate(case, f"{order.__file__}:{candidate}", harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert root.name == "future-leak"
    assert root.why.startswith(start)


@pytest.mark.slow
def test_an_unclassified_failure_lists_excluded_names_and_a_change_that_makes_it_right(
    harness_pool: RankPool,
) -> None:
    seen = evaluate(CASES[0], f"{PLACE}ODD", harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert root.name == "unclassified"
    assert "it is none of attention-cut, exchange-incomplete, future-leak, head-order" in root.why
    pair = re.search(r"(case/1 \S.*) goes wrong, and is right without a window$", root.why)
    assert pair
    fails = parse(pair[1])
    assert evaluate(fails, f"{PLACE}ODD", harness_pool).verdict is Verdict.DIVERGED
    assert evaluate(replace(fails, window=None), f"{PLACE}ODD", harness_pool).verdict.passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "name"), [("7:0011111,5:01110", "window-ignored"), ("7:0011111", "non-finite")]
)
def test_if_a_step_has_two_bugs_the_one_that_the_case_shows_is_named(
    rows: str, name: str, harness_pool: RankPool
) -> None:
    case = parse(f"case/1 rows={rows} heads=4/2 layers=1 vocab=32 sp=2 dp=1 window=3 seed=5")
    seen = evaluate(case, f"{PLACE}NOTHINGSEENBESIDEPADDING", harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert root.name == name, root


@pytest.mark.slow
def test_two_bugs_are_both_named_if_one_alone_does_not_predict_all_numbers(
    harness_pool: RankPool,
) -> None:
    seen = evaluate(CASES[0], f"{PLACE}BOTH", harness_pool)
    root, other = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert (root.name, other.name) == ("window-ignored", "denominator-per-rank")
    assert "predicts all losses of" in root.why


def test_experiments_without_wrong_losses_do_not_show_a_failure_with_wrong_losses() -> None:
    oracle, _ = reference_traces(CASES[0], traced=True)

    def diverged(*keys: str) -> Comparison:
        results = tuple(KeyResult(key, 1, 1, 9.0) for key in keys)
        return comparison_with(
            case=CASES[0], candidate="any", verdict=Verdict.DIVERGED, keys=results
        )

    def ask(_case: Case) -> Evidence:
        return Evidence(diverged("grad.head"), oracle, oracle)

    assert diagnose(diverged("nll", "grad.head"), ask) == ()
    assert diagnose(diverged("grad.head"), ask) != ()


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_weights_and_labels_are_read_off_gradients_in_every_dtype(dtype: Dtype) -> None:
    plain = replace(CASES[0], dtype=dtype)
    wide = {"vocab": 32, "head_dim": 6}
    for case in islice(neighbours(plain, wide), 10):
        oracle, seen = reference_traces(case, traced=True)
        forward = Forward(case, plain_passes(case, np.zeros(case.tokens, np.int64)))
        reading = read_loss(forward, seen, np.full(case.tokens, -1))
        assert reading is not None
        assert reading.has_labels
        assert not reading.unexplained
        assert alike(oracle["weight"].values, reading.weight_n, dtype).all()
        labels = oracle["labels"]
        assert np.array_equal(reading.label_n[labels.tokens], labels.values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [("SCALED", "unclassified"), ("BENT", "gradient-partial")]
)
def test_small_errors_that_stay_when_weights_move_are_not_rounding(
    kind: str, name: str, harness_pool: RankPool
) -> None:
    seen = evaluate(CASES[0], f"{PLACE}{kind}", harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert root.name == name
    assert "errors are small, but the same when weights move a little: no rounding" in root.why


@pytest.mark.slow
@pytest.mark.parametrize("key", ["B131", "B132", "B134", "B137"])
def test_small_errors_that_change_when_weights_move_are_rounding(
    key: str, harness_pool: RankPool
) -> None:
    candidate = only_required(BANK[key].candidate.name)
    seen = evaluate(CASES[0], candidate, harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert root.name == "low-precision"
    assert "errors are others when weights move a little, as after rounding" in root.why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "candidate", "description"),
    [
        (str(CASES[0]), "KEYSAVERAGEDINBACKWARD", "through keys and values is divided by sp"),
        (
            f"case/1 {ROWS.replace('4/2', '4/1')} sp=2 dp=1 seed=5",
            only_required("mutants.B44b"),
            "of the copies of a kv head only the first counts",
        ),
    ],
)
def test_a_wrong_backward_is_described_by_what_comes_back(
    line: str, candidate: str, description: str, harness_pool: RankPool
) -> None:
    name = candidate if "." in candidate else f"{PLACE}{candidate}"
    seen = evaluate(parse(line), name, harness_pool)
    (root, *_) = diagnosed(seen, harness_pool).inquiry.diagnosis
    assert root.name == "gradient-partial"
    assert description in root.why


def test_a_failure_that_only_one_experiment_shows_gets_no_name(harness_pool: RankPool) -> None:
    seen = evaluate(CASES[0], f"{PLACE}NOWINDOW", harness_pool)
    asked: list[Case] = []

    def ask(case: Case) -> Evidence | None:
        asked.append(case)
        if len(asked) > 1:
            return None
        oracle, _ = reference_traces(CASES[0], traced=True)
        return Evidence(seen, oracle, oracle)

    assert diagnose(seen, ask) == ()
    assert len(asked) > 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_experiments_are_small_and_for_the_same_ranks_and_heads(case: Case) -> None:
    for changed in simplifications(case):
        for near in islice(neighbours(case, changed), 30):
            assert near.sp == case.sp
            assert near.dp in (1, case.dp)
            assert (near.heads, near.kv_heads) == (case.heads, case.kv_heads)
            assert near.tokens <= max(24, 2 * len(near.rows))
            assert any(row.supervised() for row in near.rows)


class ByPositions(LocalDialect):
    """A step whose mask compares positions within rows, and ignores which row they are in."""

    name = "by-positions"

    def segments(self, mine: Shard, _case: Case) -> Segments:
        positions_T = mine.positions_TP
        return Segments.masked(positions_T[:, None] >= positions_T)


BY_POSITIONS = ByPositions()


@pytest.mark.slow
def test_a_mask_that_compares_positions_alone_is_a_leak_between_rows(
    harness_pool: RankPool,
) -> None:
    case = parse("case/1 rows=4:1111,2:11,2:11 sp=2")
    seen = evaluate(case, f"{__file__}:BY_POSITIONS", harness_pool)
    assert seen.inquiry.called == "segment-leak"
    assert "it sees what is not behind it in its own row, in any row" in explain(seen)
