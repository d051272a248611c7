"""The script of random faults: it knows many kinds, and notices a wrong report of one."""

import re
from dataclasses import replace
from random import Random

import pytest
from chaos import CLOSING, DEADLINE, IDLE, IN_A_CASE, PAGE, cause, check_report, incidents
from kills import KILLS

from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind

INCIDENTS = {(each.name, each.moment): each for each in incidents()}


def test_there_are_many_incidents_with_names_of_their_own() -> None:
    assert len(INCIDENTS) == len(list(incidents())) >= 75


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Fault(kind=Kind.DIED, summary="", rank=1), ""),
        (Fault(kind=Kind.DIED, summary="someone died"), "rank None is blamed: someone died"),
        (Fault(kind=Kind.HUNG, summary="it hung", rank=1), "reported as hung: it hung"),
        (Fault(kind=Kind.DIED, summary="it died", rank=0), "rank 0 is blamed: it died"),
        (Assembly(), "not noticed: Assembly"),
    ],
)
def test_a_fault_that_is_missed_or_reported_wrongly_is_an_error(
    outcome: object, error: str
) -> None:
    assert check_report(INCIDENTS["DIES", IN_A_CASE], outcome) == error


@pytest.mark.slow
def test_a_fault_that_is_not_caused_or_is_reported_late_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dies, closing = (INCIDENTS["SIGKILL to rank 1", moment] for moment in (IDLE, CLOSING))
    with RankPool(2, deadline=DEADLINE) as pool:
        assert cause(dies, pool, Random(0))[1] == ""
        assert cause(closing, pool, Random(0))[1] == ""
        # Without a signal nothing happens, so no fault is reported.
        spared = replace(dies, signal_name="")
        assert cause(spared, pool, Random(0))[1] == "not noticed: Assembly"
        late = replace(closing, signal_name="")
        monkeypatch.setattr("chaos.MARGIN", -DEADLINE)
        assert "reported after" in cause(late, pool, Random(0))[1]


def test_the_table_of_the_page_has_every_kind_of_incident() -> None:
    page = PAGE.read_text()
    name = r"[A-Z][A-Z_]*(?: to [\w -]+)?(?:, on another host)?"
    names = set(re.findall(rf"^\| ({name}) \|", page, re.MULTILINE))
    assert names == {incident.name for incident in INCIDENTS.values()} | {*KILLS}
    assert re.search(r"\n\d{3,} faults in a row from seed \d+, of \d+ kinds, and no miss\.", page)
