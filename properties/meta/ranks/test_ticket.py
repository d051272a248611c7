"""Whatever a rank may say, the controller answers with a trouble and not with an exception."""

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.case import parse
from harness.ranks.link import Event, Link
from harness.ranks.payload import pack
from harness.ranks.ticket import Ticket, take_in
from harness.ranks.wire import Frame, FrameReader, encode
from harness.trace import Fragment, Kind

FRAGMENTS, PAYLOAD = pack([Fragment("loss", np.zeros(()))])
FINISHED = {
    "refusal": "",
    "limits": "",
    "run": 1,
    "fragments": FRAGMENTS,
    "sent": 4,
    "unemitted": "",
}
RAISED = {"run": 1, "moment": 5, "error": "E: no", "stack": "here"}


@pytest.fixture
def link() -> Iterator[Link]:
    with socket.socket() as unused:
        yield Link(unused, rank=0, ready=True)


@pytest.fixture
def ticket() -> Ticket:
    return Ticket(parse("case/1 rows=3:111 sp=2"), "native-local", "", traced=False, run=1)


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        ("report", {}),
        ("stop", {}),
        ("finished", {}),
        ("finished", FINISHED | {"run": True}),
        ("finished", FINISHED | {"run": -1}),
        ("finished", FINISHED | {"fragments": None}),
        ("finished", FINISHED | {"fragments": []}),
        ("finished", FINISHED | {"fragments": [*FRAGMENTS, *FRAGMENTS]}),
        ("finished", FINISHED | {"sent": [1]}),
        ("finished", FINISHED | {"sent": "4"}),
        ("finished", FINISHED | {"sent": -4}),
        ("finished", FINISHED | {"log": 5}),
        ("finished", FINISHED | {"order": 5}),
        ("finished", FINISHED | {"order": [["g", "k", "many"]]}),
        ("finished", FINISHED | {"refusal": 5}),
        ("finished", FINISHED | {"log": [["g", float("inf"), "k", "[]", True, ""]]}),
        ("raised", RAISED | {"moment": float("nan")}),
        ("raised", RAISED | {"moment": {}}),
        ("raised", RAISED | {"error": 5}),
        ("raised", {"run": 1, "moment": 5, "error": "E"}),
    ],
)
def test_an_ill_formed_answer_is_garbage(
    link: Link, ticket: Ticket, kind: str, header: dict[str, Any]
) -> None:
    trouble = take_in(Event(link, Frame(kind, header, PAYLOAD)), [ticket], up=True)
    assert trouble
    assert (trouble.kind, trouble.rank) == (Kind.PROTOCOL, 0)
    assert not ticket.complete


def test_a_report_that_comes_too_late_is_no_answer_and_no_trouble(
    link: Link, ticket: Ticket
) -> None:
    late = Event(link, Frame("report", {}, b""))
    link.asked = 1
    assert take_in(late, [ticket], up=True) is None
    assert not ticket.fragments
    # It was asked once.
    trouble = take_in(late, [ticket], up=True)
    assert trouble
    assert trouble.kind is Kind.PROTOCOL


def test_an_answer_counts_once_and_for_its_own_run_only(link: Link, ticket: Ticket) -> None:
    def say(**changed: int) -> Kind | None:
        event = Event(link, Frame("finished", FINISHED | changed, PAYLOAD))
        trouble = take_in(event, [ticket], up=True)
        assert trouble is None or trouble.text.startswith("answered for run ")
        return trouble.kind if trouble else None

    assert say(run=2) is Kind.STALE
    assert say() is None
    assert ticket.sent == {0: 4}
    assert say() is Kind.STALE
    link.rank = 2
    assert say() is Kind.STALE


def test_an_error_can_be_printed_whatever_it_is(link: Link, ticket: Ticket) -> None:
    (frame,) = FrameReader().feed(encode("raised", run=1, moment=5, error="E: \udcff", stack=""))
    trouble = take_in(Event(link, frame), [ticket], up=True)
    assert trouble
    assert trouble.text.encode() == "raised E: �".encode()
