"""Whatever a rank may say, the controller answers with a incident and not with an exception."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from harness.case import parse
from harness.ranks.case_run import CaseRun, take_in
from harness.ranks.frames import Reader, encode
from harness.ranks.link import Event, Link
from harness.ranks.messages import Doing, Finished, Hello, Message, OfRank, Raised, Ready
from harness.ranks.payload import pack
from harness.trace import Fragment, Kind

PIECES, TENSORS = pack([Fragment("loss", np.zeros(()))])
FINISHED = Finished(
    1,
    PIECES,
    TENSORS,
    skipped=[],
    refusal="",
    limits="",
    idle=False,
    sent=4,
    order=[],
    stood_in=[],
    unemitted="",
)
DOING = Doing("here", "", [])


@pytest.fixture
def link() -> Iterator[Link]:
    with socket.socket() as unused:
        yield Link(unused, rank=0, ready=True)


@pytest.fixture
def case_run() -> CaseRun:
    return CaseRun(parse("case/1 rows=3:111 sp=2"), "native-local", "", traced=False, run=1)


def said(message: Message) -> OfRank:
    """As it comes over a socket."""
    (heard,) = Reader[OfRank](OfRank).feed(encode(message))
    return heard


@pytest.mark.parametrize(
    "message",
    [
        DOING,
        Hello("", 0, 1),
        replace(FINISHED, pieces=[]),
        replace(FINISHED, pieces=[*PIECES, replace(PIECES[0], pads=1)], tensors=b"x"),
        replace(FINISHED, tensors=b""),
        replace(FINISHED, tensors=TENSORS + b"x"),
    ],
)
def test_what_was_not_asked_for_or_does_not_fit_is_garbage(
    link: Link, case_run: CaseRun, message: OfRank
) -> None:
    incident = take_in(Event(link, said(message)), [case_run], up=True)
    assert incident
    assert (incident.kind, incident.rank) == (Kind.PROTOCOL, 0)
    assert not case_run.complete


def test_a_report_that_comes_too_late_is_no_answer_and_no_trouble(
    link: Link, case_run: CaseRun
) -> None:
    link.asked = 1
    assert take_in(Event(link, DOING), [case_run], up=True) is None
    assert not case_run.fragments
    # It was asked once.
    incident = take_in(Event(link, DOING), [case_run], up=True)
    assert incident
    assert incident.kind is Kind.PROTOCOL


def test_an_answer_counts_once_and_for_its_own_run_only(link: Link, case_run: CaseRun) -> None:
    def say(run: int = 1) -> Kind | None:
        incident = take_in(Event(link, replace(FINISHED, run=run)), [case_run], up=True)
        assert incident is None or incident.text.startswith("answered for run ")
        return incident.kind if incident else None

    assert say(run=2) is Kind.STALE
    assert say() is None
    assert case_run.finished == {0: replace(FINISHED, tensors=b"")}
    assert say() is Kind.STALE
    link.rank = 2
    assert say() is Kind.STALE


def test_what_was_raised_is_one_line_however_many_it_has(link: Link, case_run: CaseRun) -> None:
    raised = said(Raised(1, 5, error="AcceleratorError: CUDA error: assert\nSearch\n", stack=""))
    incident = take_in(Event(link, raised), [case_run], up=True)
    assert incident
    assert incident.text == "raised AcceleratorError: CUDA error: assert Search"


def test_what_a_rank_says_can_be_printed_whatever_it_is(link: Link, case_run: CaseRun) -> None:
    raised = said(Raised(1, 5, error="E: \udcff\x1b[2J", stack="\x07"))
    incident = take_in(Event(link, raised), [case_run], up=True)
    assert incident
    assert (incident.text, incident.stack) == ("raised E: \ufffd\ufffd[2J", "\ufffd")
    take_in(Event(link, said(Ready({"\x1bdevice": "c\npu\x1b"}))), [case_run], up=True)
    assert "\x1b" not in str(link.hardware)
