"""Keys that nothing is compared with are told, and copies of them held against each other."""

import json
import re

import pytest
import torch

from harness.against import ITSELF
from harness.case import parse
from harness.cli import main
from harness.compare import Verdict
from harness.judge import evaluate, evaluate_traced
from harness.ranks.pool import RankPool
from harness.reference import reference
from harness.report import explain
from harness.trace import MisfitKind, is_of_plain_training, is_required
from properties.helpers.places import PLANTED

pytest_plugins = ["properties.helpers.own_pool"]

FILE = PLANTED / "metrics.py"
CASE = parse("case/1 rows=5:11111,3:111 heads=4/2 layers=2 sp=2")
TOLD = {"metric.kl", "metric.of-rank-1", "entropy"}


def test_what_nothing_is_compared_with_is_told_and_nothing_else(harness_pool: RankPool) -> None:
    for judge in (evaluate, evaluate_traced):
        seen = judge(CASE, f"{FILE}:METRICS", harness_pool)
        assert seen.verdict.passed, explain(seen)
        assert set(seen.uncompared) == TOLD
        assert re.search(
            "  extra   emitted, and compared with nothing: .*metric.kl", explain(seen)
        )
        assert evaluate(CASE, "native-local", harness_pool).uncompared == ()


def test_copies_that_differ_are_a_misfit_though_nothing_knows_the_key(
    harness_pool: RankPool,
) -> None:
    seen = evaluate(CASE, f"{FILE}:OF_ITS_RANK", harness_pool)
    assert seen.verdict is Verdict.DIVERGED
    assert seen.called == "replica-split"
    (misfit,) = seen.misfits
    assert (misfit.kind, misfit.key, misfit.ranks) == (MisfitKind.SPLIT, "metric.kl", (1,))
    assert "metric.kl: rank 1 holds another copy than rank 0" in explain(seen)


def test_against_itself_a_metric_is_compared_with_that_at_sp_1(harness_pool: RankPool) -> None:
    right = evaluate(CASE, f"{FILE}:METRICS", harness_pool, against=ITSELF)
    assert right.verdict.passed, explain(right)
    wrong = evaluate(CASE, f"{FILE}:OF_SP", harness_pool, against=ITSELF)
    assert wrong.verdict is Verdict.DIVERGED
    assert wrong.first is not None
    assert wrong.first.key == "metric.kl"


@pytest.mark.usefixtures("own_pool")
def test_a_campaign_tells_once_what_was_compared_with_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["check", "--candidate", f"{FILE}:METRICS", "--cases=3", "--sp=2", "--ranks=2"]
    main(words)
    assert capsys.readouterr().out.count("compared with nothing: ") == 1
    main([*words, "--json"])
    (tally,) = json.loads(capsys.readouterr().out)["candidates"].values()
    assert set(tally["uncompared"]) == TOLD


def test_what_plain_training_shows_is_known_by_its_name() -> None:
    for key in reference(CASE, torch.float64, traced=True):
        assert is_required(key) != is_of_plain_training(key)
    assert not is_of_plain_training("layers.0.router")
