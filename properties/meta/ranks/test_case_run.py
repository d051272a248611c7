"""For any message of a rank, the controller returns an incident or nothing; it never raises."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from harness.case import parse
from harness.ranks.case_run import CaseRun, take_in
from harness.trace import Fragment, Kind
from harness.wire.frames import Reader, encode
from harness.wire.link import Event, Link
from harness.wire.messages import Activity, Finished, FromRank, Hello, Message, Raised, Ready
from harness.wire.payload import pack

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
    embedded=0,
    hypotheses=[],
    order=[],
    stood_in=[],
    unemitted="",
)
ACTIVITY = Activity("here", "", [])


@pytest.fixture
def link() -> Iterator[Link]:
    with socket.socket() as unused:
        yield Link(unused, rank=0, is_ready=True)


@pytest.fixture
def case_run() -> CaseRun:
    return CaseRun(parse("case/1 rows=3:111 sp=2"), "native-local", "", traced=False, run=1)


def received(message: Message) -> FromRank:
    """Return a message as it comes out of a socket."""
    (decoded,) = Reader[FromRank](FromRank).feed(encode(message))
    return decoded


@pytest.mark.parametrize(
    "message",
    [
        ACTIVITY,
        Hello("", 0, 1),
        replace(FINISHED, pieces=[]),
        replace(FINISHED, pieces=[*PIECES, replace(PIECES[0], pads=1)], tensors=b"x"),
        replace(FINISHED, tensors=b""),
        replace(FINISHED, tensors=TENSORS + b"x"),
    ],
)
def test_an_unexpected_or_inconsistent_message_is_garbage(
    link: Link, case_run: CaseRun, message: FromRank
) -> None:
    incident = take_in(Event(link, received(message)), [case_run], is_ready=True)
    assert incident
    assert (incident.kind, incident.rank) == (Kind.PROTOCOL, 0)
    assert not case_run.is_complete


def test_a_late_answer_to_a_probe_is_neither_a_result_nor_an_incident(
    link: Link, case_run: CaseRun
) -> None:
    link.probes = 1
    assert take_in(Event(link, ACTIVITY), [case_run], is_ready=True) is None
    assert not case_run.fragments
    # There was only one probe.
    incident = take_in(Event(link, ACTIVITY), [case_run], is_ready=True)
    assert incident
    assert incident.kind is Kind.PROTOCOL


def test_an_answer_counts_once_and_for_its_own_run_only(link: Link, case_run: CaseRun) -> None:
    def answer(run: int = 1) -> Kind | None:
        event = Event(link, replace(FINISHED, run=run))
        incident = take_in(event, [case_run], is_ready=True)
        assert incident is None or incident.text.startswith("answered for run ")
        return incident.kind if incident else None

    assert answer(run=2) is Kind.STALE
    assert answer() is None
    assert case_run.finished == {0: replace(FINISHED, tensors=b"")}
    assert answer() is Kind.STALE
    link.rank = 2
    assert answer() is Kind.STALE


def test_an_exception_of_several_lines_becomes_one_line(link: Link, case_run: CaseRun) -> None:
    error = "AcceleratorError: CUDA error: assert\nSearch\n"
    raised = received(Raised(1, 5, error=error, stack=""))
    incident = take_in(Event(link, raised), [case_run], is_ready=True)
    assert incident
    assert incident.text == "raised AcceleratorError: CUDA error: assert Search"


def test_every_text_of_a_rank_is_made_printable(link: Link, case_run: CaseRun) -> None:
    raised = received(Raised(1, 5, error="E: \udcff\x1b[2J", stack="\x07"))
    incident = take_in(Event(link, raised), [case_run], is_ready=True)
    assert incident
    assert (incident.text, incident.stack) == ("raised E: \ufffd\ufffd[2J", "\ufffd")
    ready = received(Ready({"\x1bdevice": "c\npu\x1b"}))
    take_in(Event(link, ready), [case_run], is_ready=True)
    assert "\x1b" not in str(link.hardware)
