"""Whoever reaches the port of a controller learns nothing, changes nothing and costs little."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.case import parse
from harness.judge import evaluate
from harness.ranks import launch
from harness.ranks.dial import split
from harness.ranks.handshake import Challenge, Guest, Unproven, proof
from harness.ranks.nodes import Nodes
from harness.ranks.pool import RankPool
from harness.ranks.wire import MAGIC, PREFIX, FrameReader, ProtocolError, encode
from harness.verdict import Verdict
from properties.helpers.places import ROOT

TOKEN = "known on these hosts only"
# More than anything here may make a controller grow.
MOST = 16 << 20
MANY = 300
WAS_HERE = "/tmp/harness-was-here"
CASE = parse("case/1 rows=3:111,4:1011 sp=2")


def recorded() -> bytes:
    """What a node that knows the token once said to another challenge."""
    (challenge,) = FrameReader().feed(Challenge().frame)
    return Guest(TOKEN, "join").answer(challenge)


def claiming(header: int, payload: int, magic: bytes = MAGIC) -> bytes:
    return PREFIX.pack(magic, header, payload)


def header(text: bytes) -> bytes:
    return claiming(len(text), 0) + text


OWN = "a" * 32
GUESSED = proof("a guess", "join{}", OWN, OWN)
WORDS = {
    "nothing, and goes": b"",
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a pickle": f"cposix\nsystem\n(S'touch {WAS_HERE}'\ntR.".encode(),
    "zeros": bytes(5000),
    "noise": bytes(range(256)) * 16,
    "half a prefix": MAGIC,
    "another magic": claiming(2, 0, b"UHP2") + b"{}",
    "a header of 32 GiB": claiming(0xFFFFFFFF, 0),
    "a payload of 32 GiB": claiming(2, 1 << 35),
    "a payload of 2**64 - 1": claiming(2, (1 << 64) - 1),
    "one byte too many": claiming(2, 1 << 12),
    "no JSON": header(b"{"),
    "no text": header(b"\xff\xfe"),
    "a list": header(b"[]"),
    "a number": header(b"7"),
    "no kind": header(b"{}"),
    "a kind that is none": header(b'{"kind": 7}'),
    "very deep": header(b"[" * 4000),
    "a large number": header(b'{"kind": "hello", "rank": ' + b"9" * 3000 + b"}"),
    "a rank that is none": encode("hello", rank="first", pid=1),
    "a rank below zero": encode("hello", rank=-1, pid=1),
    "a rank that is not of here": encode("hello", rank=1, pid=1, nonce=OWN, proof=GUESSED),
    "a rank without a proof": encode("hello", rank=1, pid=1),
    "our own rank": encode("hello", rank=0, pid=1, nonce=OWN, proof=GUESSED),
    "a node without a proof": encode("join"),
    "a node that guesses": encode("join", nonce=OWN, proof=GUESSED),
    "a node with an empty proof": encode("join", nonce="", proof=""),
    "a proof that is no text": encode("join", nonce=OWN, proof=7),
    "a proof beyond ASCII": encode("join", nonce=OWN, proof="é"),
    "a replay": recorded(),
    "a welcome": encode("welcome", proof=GUESSED),
    "a challenge": Challenge().frame,
    "an order": encode("launch", ranks=1),
    "an answer": encode("finished", run=1, fragments=[]),
    "a report": encode("report", stack="", importing="", collectives=[]),
    "what is left": encode("left", launch="", ended="", files={"supervisor.0": "nothing"}),
    "a goodbye": encode("bye"),
}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextmanager
def crowd(endpoint: str) -> Iterator[tuple[dict[str, bytes], Future[None]]]:
    """Everybody who says something, and many who say nothing: what each was told, and its end."""
    told: dict[str, bytes] = {}

    def come() -> None:
        idle = [socket.create_connection(split(endpoint), 10.0) for _ in range(MANY)]
        for name, words in WORDS.items():
            with socket.create_connection(split(endpoint), 10.0) as connection:
                # It may be refused before it is done.
                with contextlib.suppress(ConnectionError):
                    connection.sendall(words)
                told[name] = heard(connection)
        for number, connection in enumerate(idle):
            with connection:
                told[f"idle {number}"] = heard(connection)

    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(come)
        yield told, coming
        coming.result()


def heard(connection: socket.socket) -> bytes:
    """All that a controller says until it hangs up."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 12):
            said += data
    return said


def test_strangers_are_nobodys_fault_and_learn_nothing_and_cost_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_TOKEN", TOKEN)
    monkeypatch.setattr(launch, "MANNERS", 0.5)
    endpoint = free_endpoint()
    join = (sys.executable, "-m", "harness", "join", endpoint)
    with RankPool(2, nodes=Nodes(2, endpoint)) as pool:
        pool.start()
        # Before anybody has joined, and then beside those who have.
        with crowd(endpoint) as (told, gone):
            other = subprocess.Popen(join, stderr=subprocess.DEVNULL, cwd=ROOT)
            while not gone.done():
                assert evaluate(CASE, "native-local", pool).verdict is Verdict.WITHIN
        before = resident()
        with crowd(endpoint) as (again, gone):
            while not gone.done():
                assert evaluate(CASE, "native-local", pool).verdict is Verdict.WITHIN
        assert resident() - before < MOST
        assert pool.launches == 1
    assert len(told) == len(again) == len(WORDS) + MANY
    assert other.wait(10.0) == 0
    for name, said in [*told.items(), *again.items()]:
        assert [frame.kind for frame in FrameReader().feed(said)] in ([], ["challenge"]), name
        assert TOKEN.encode() not in said
    assert not Path(WAS_HERE).exists()


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_not_even_a_node_may_send_more_than_the_ends_of_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_TOKEN", TOKEN)
    nodes = Nodes(2, free_endpoint())
    with socket.create_connection(split(nodes.endpoint)):
        link = nodes.accept()
        (challenge,) = FrameReader().feed(link.challenge.frame)
        (join,) = FrameReader().feed(Guest(TOKEN, "join").answer(challenge))
        with pytest.raises(ProtocolError, match="claims 8192"):
            list(link.reader.feed(claiming(8192, 0)))
        link.reader = FrameReader(limit=link.reader.limit)
        nodes.admit(link, join)
        with pytest.raises(ProtocolError, match="claims 33554432"):
            list(link.reader.feed(claiming(1 << 25, 0)))
    nodes.close()


def test_a_proof_is_of_both_nonces_of_who_says_it_and_of_what_is_said() -> None:
    challenge = Challenge()
    (asked,) = FrameReader().feed(challenge.frame)
    (hello,) = FrameReader().feed(Guest(TOKEN, "hello", {"rank": 1, "pid": 7}).answer(asked))
    assert challenge.welcome(TOKEN, hello)
    for other, frame in (
        (Challenge(), hello),
        (challenge, replace(hello, kind="join")),
        (challenge, replace(hello, header={**hello.header, "rank": 2})),
        (challenge, replace(hello, header={**hello.header, "nonce": OWN})),
    ):
        with pytest.raises(Unproven):
            other.welcome(TOKEN, frame)
