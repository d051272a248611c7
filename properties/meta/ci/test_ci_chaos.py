"""Faults at random are of many kinds, and a fault that is told wrongly is a miss."""

import re
from dataclasses import replace
from random import Random

import pytest
from chaos import CLOSING, DEADLINE, IDLE, IN_A_CASE, PAGE, incidents, suffered, wrongly_told

from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind

INCIDENTS = {(each.name, each.moment): each for each in incidents()}


def test_there_are_many_kinds_and_each_has_a_name() -> None:
    assert len(INCIDENTS) == len(list(incidents())) >= 75


@pytest.mark.parametrize(
    ("outcome", "miss"),
    [
        (Fault(kind=Kind.DIED, summary="", rank=1), ""),
        (Fault(kind=Kind.DIED, summary="someone died"), "rank None is blamed: someone died"),
        (Fault(kind=Kind.HUNG, summary="it hung", rank=1), "told as hung: it hung"),
        (Fault(kind=Kind.DIED, summary="it died", rank=0), "rank 0 is blamed: it died"),
        (Assembly(), "nobody noticed: Assembly"),
    ],
)
def test_what_is_told_wrongly_or_not_at_all_is_a_miss(outcome: object, miss: str) -> None:
    assert wrongly_told(INCIDENTS["DIES", IN_A_CASE], outcome) == miss


def test_a_fault_is_suffered_and_a_candidate_that_is_right_is_a_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dies, closing = (INCIDENTS["SIGKILL to rank 1", moment] for moment in (IDLE, CLOSING))
    with RankPool(2, deadline=DEADLINE) as pool:
        assert suffered(dies, pool, Random(0))[1] == ""
        assert suffered(closing, pool, Random(0))[1] == ""
        # Of no signal: nothing happens to it, and that is what is not told.
        spared = replace(dies, number="")
        assert suffered(spared, pool, Random(0))[1] == "nobody noticed: Assembly"
        late = replace(closing, number="")
        monkeypatch.setattr("chaos.MARGIN", -DEADLINE)
        assert "told after" in suffered(late, pool, Random(0))[1]


def test_the_table_that_is_shown_has_every_kind_and_was_written_by_the_script() -> None:
    shown = PAGE.read_text()
    name = r"[A-Z][A-Z_]*(?: to [\w ]+)?(?:, on another host)?"
    names = set(re.findall(rf"^\| ({name}) \|", shown, re.MULTILINE))
    assert names == {trouble.name for trouble in INCIDENTS.values()}
    assert re.search(r"\n\d{3,} faults in a row from seed \d+, of \d+ kinds, and no miss\.", shown)
