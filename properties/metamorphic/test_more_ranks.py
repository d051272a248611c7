"""The relation that needs eight ranks, and so a pool of its own."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from harness.case import Dtype
from harness.generation import cases, draw_list
from harness.plugin.needs import WANT
from harness.plugin.placement import place
from harness.ranks.device import ImpossiblePlacement
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate_all
from properties.metamorphic.layout import RESHARDED
from properties.metamorphic.relation import Twins
from properties.metamorphic.trial import check, check_it_kills, expensive_examples

RANKS = 8


@pytest.fixture(scope="module")
def pool(pytestconfig: pytest.Config, harness_pool: RankPool) -> Iterator[RankPool]:
    """A pool on the device of all other tests, if so many ranks can share that device."""
    try:
        placement = place(pytestconfig, RANKS)
    except ImpossiblePlacement as error:
        pytest.skip(f"{WANT}{harness_pool.device}: {error}")
    with RankPool(RANKS, placement) as pool:
        yield pool


@pytest.mark.slow
@settings(expensive_examples, max_examples=expensive_examples.max_examples // 2)
@given(twins=RESHARDED.drawn)
def test_one_rank_or_eight_compute_the_same(
    pool: RankPool, subject: str, refused: Counter[str], twins: Twins
) -> None:
    check(RESHARDED, pool, subject, twins, refused)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_lower_precisions_hold_where_dp_and_sp_are_above_one_and_different(
    pool: RankPool, dtype: Dtype
) -> None:
    batch = draw_list(cases(sps=(3, 4), dps=(2,), dtypes=(dtype,)), 8, 0)
    for comparison in evaluate_all(((case, "native-local") for case in batch), pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
def test_labels_lost_between_ranks_show_when_the_cuts_move(pool: RankPool) -> None:
    check_it_kills(RESHARDED, pool)
