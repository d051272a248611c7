"""The relation that needs more ranks than any other test, and so a pool of its own."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from harness.ranks.pool import RankPool
from properties.metamorphic.layout import RESHARDED
from properties.metamorphic.relation import Twins
from properties.metamorphic.trial import check, check_it_kills, patient


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(8) as pool:
        yield pool


@settings(patient, max_examples=patient.max_examples // 2)
@given(twins=RESHARDED.drawn)
def test_one_rank_or_eight_compute_the_same(pool: RankPool, subject: str, twins: Twins) -> None:
    check(RESHARDED, pool, subject, twins)


def test_labels_lost_between_two_ranks_show_when_the_cuts_move(pool: RankPool) -> None:
    check_it_kills(RESHARDED, pool)
