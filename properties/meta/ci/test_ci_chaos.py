"""Faults at random are of many kinds, and a fault that is told wrongly is a miss."""

from dataclasses import replace
from random import Random

import pytest
from chaos import DEADLINE, MARGIN, STARTING, suffered, troubles, wrongly_told

from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind

TROUBLES = {trouble.name: trouble for trouble in troubles()}


def test_there_are_many_kinds_and_each_has_a_name() -> None:
    assert len(TROUBLES) == len(list(troubles())) >= 75


@pytest.mark.parametrize(
    ("outcome", "took", "miss"),
    [
        (Fault(kind=Kind.DIED, summary="", rank=1), 1.0, ""),
        (Fault(kind=Kind.DIED, summary=""), 1.0, ""),
        (Fault(kind=Kind.HUNG, summary="it hung", rank=1), 1.0, "told as hung: it hung"),
        (Fault(kind=Kind.DIED, summary="it died", rank=0), 1.0, "rank 0 is blamed: it died"),
        (Fault(kind=Kind.DIED, summary="", rank=1), DEADLINE + MARGIN + 1, "told after 14.0 s"),
        (Assembly(), 1.0, "nobody noticed: Assembly"),
    ],
)
def test_what_is_told_wrongly_late_or_not_at_all_is_a_miss(
    outcome: object, took: float, miss: str
) -> None:
    assert wrongly_told(TROUBLES["DIES"], outcome, took) == miss


def test_a_fault_is_suffered_and_a_candidate_that_is_right_is_a_miss() -> None:
    dies = TROUBLES["SIGKILL to rank 1 between cases"]
    assert dies.moment != STARTING
    with RankPool(2, deadline=DEADLINE) as pool:
        assert suffered(dies, pool, Random(0))[1] == ""
        # Of no signal: nothing happens to it, and that is what is not told.
        spared = replace(dies, number="")
        assert suffered(spared, pool, Random(0))[1] == "nobody noticed: Assembly"
