"""Whatever comes in, a decoder answers or refuses; it never falls over."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from harness.case import InvalidCase, parse
from harness.ranks.payload import pack, unpack
from harness.ranks.wire import MAGIC, PREFIX, FrameReader, ProtocolError, encode
from harness.trace import Fragment, digest
from properties.helpers.fuzzing import fuzz, mutate

MUTANTS = 10_000

LINES = [
    "case/1 rows=3:111,4:1011:left heads=4/2 layers=1 vocab=32 sp=2 dp=1 dtype=fp64 seed=0",
    "case/1 rows=800:1{800},20:0{12}10101111:left heads=8 layers=2 vocab=9 sp=4 kernel=sdpa",
    "case/1 rows=2:11,3:101 ids=[1,2],[0,4,8] heads=4/4 vocab=9 sp=4 dp=2 seed=99 dtype=bf16",
    "case/1 rows=1:0,1:1 heads=6/3 sp=3 dim=4 tied=1 window=2 micro=2 loss=row-mean checkpoint=1",
]


def fragments() -> list[Fragment]:
    gradient = np.arange(6.0).reshape(2, 3)
    return [
        Fragment("nll", np.array([0.5, 1.5], np.float32), np.array([0, 2]), pads=1),
        Fragment("loss", np.array(1.0), digest=digest(np.array(1.0))),
        Fragment("grad.head", None, digest=digest(gradient)),
        Fragment("grad.embed", gradient, digest=digest(gradient)),
    ]


def finished(run: int, kept: slice) -> bytes:
    described, payload = pack(fragments()[kept])
    return encode("finished", payload, run=run, fragments=described, sent=8)


FRAMES = [finished(1, slice(4)), finished(20, slice(2)), finished(3, slice(3, 4))]


def mutant_lines(random: Random) -> Iterator[str]:
    while True:
        yield mutate(random.choice(LINES), random.choice(LINES), random)


def mutant_frames(random: Random) -> Iterator[bytes]:
    """Mostly frames whose lengths are right and whose content is not; some with any byte wrong."""

    def changed(data: bytes, other: bytes) -> bytes:
        return mutate(data.decode("latin-1"), other.decode("latin-1"), random).encode("latin-1")

    while True:
        frame, other = random.choice(FRAMES), random.choice(FRAMES)
        _, size, _ = PREFIX.unpack_from(frame)
        head, payload = frame[PREFIX.size :][:size], frame[PREFIX.size + size :]
        part = random.randrange(8)
        if part == 0:
            yield changed(frame, other)
            continue
        if part == 1:
            payload = changed(payload, other)
        else:
            head = changed(head, other[PREFIX.size :])
        yield PREFIX.pack(MAGIC, len(head), len(payload)) + head + payload


def receive(data: bytes) -> None:
    reader, cut = FrameReader(), len(data) // 2
    frames = [frame for piece in (data[:cut], data[cut:]) for frame in reader.feed(piece)]
    for frame in frames:
        frame.whole("run")
        for fragment in unpack(frame.header.get("fragments"), frame.payload):
            assert (type(fragment.key), type(fragment.digest)) == (str, str)
            assert fragment.pads >= 0
            if fragment.tokens is not None:
                assert fragment.values is not None
                assert len(fragment.values) == len(fragment.tokens)
    if not frames:
        raise ProtocolError("bytes are still to come")


Decoded = tuple[Callable[..., object], Callable[[Random], Iterator[Any]], type[Exception]]
DECODERS: dict[str, Decoded] = {
    "case lines": (parse, mutant_lines, InvalidCase),
    "frames": (receive, mutant_frames, ProtocolError),
}


@pytest.mark.parametrize("count", [MUTANTS, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("what", DECODERS)
def test_mutants_raise_nothing_but_a_refusal(what: str, count: int) -> None:
    decode, mutants, refusal = DECODERS[what]
    seen = fuzz(decode, mutants(Random(0)), refusal, count)
    assert seen["accepted"] > count // 20
    assert seen["refused"] > count // 4


def test_the_fuzz_notices_a_case_parser_that_trusts_its_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trusting(_field: str, text: str) -> str:
        return "".join({"0": "0", "1": "1"}[bit] for bit in text)

    monkeypatch.setattr("harness.case.text.read_mask", trusting)
    with pytest.raises(KeyError):
        fuzz(parse, mutant_lines(Random(0)), InvalidCase, MUTANTS)


@pytest.mark.parametrize(
    ("trusting", "error"),
    [
        (lambda header: header["fragments"], KeyError),
        (lambda header: [item["key"] for item in header.get("fragments")], TypeError),
    ],
)
def test_the_fuzz_notices_a_decoder_that_trusts_its_input(
    trusting: Callable[[dict[str, object]], object], error: type[Exception]
) -> None:
    def decode(data: bytes) -> None:
        for frame in FrameReader().feed(data):
            trusting(frame.header)

    with pytest.raises(error):
        fuzz(decode, mutant_frames(Random(0)), ProtocolError, MUTANTS)


def test_a_header_that_is_json_but_no_frame_is_refused() -> None:
    for head in (b"[]", b"3", b"{}", b'{"kind": 3}', b"\xff", b"[" * 100_000):
        with pytest.raises(ProtocolError):
            list(FrameReader().feed(PREFIX.pack(MAGIC, len(head), 0) + head))


@pytest.mark.parametrize(
    ("described", "size"),
    [
        ({"tokens": 2, "dtype": "<f8", "shape": [1]}, 24),
        ({"tokens": 1, "dtype": "<f8", "shape": []}, 16),
        ({"tokens": 1}, 8),
        ({"dtype": "<f8", "shape": [2]}, 8),
        ({"dtype": "<f8", "shape": [1]}, 9),
        ({"dtype": "|O8", "shape": [1]}, 8),
        ({"dtype": "<f8", "shape": [1] * 9}, 8),
    ],
)
def test_a_description_that_does_not_fit_its_bytes_is_refused(
    described: dict[str, object], size: int
) -> None:
    with pytest.raises(ProtocolError):
        unpack([{"key": "nll", **described}], bytes(size))


def test_fragments_come_out_as_they_went_in() -> None:
    described, payload = pack(fragments())
    again = unpack(json.loads(json.dumps(described)), payload)
    for sent, got in zip(fragments(), again, strict=True):
        assert (got.key, got.pads, got.digest) == (sent.key, sent.pads, sent.digest)
        for mine, theirs in ((sent.values, got.values), (sent.tokens, got.tokens)):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
                assert mine.tobytes() == theirs.tobytes()
