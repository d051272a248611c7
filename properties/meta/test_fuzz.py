"""The decoders of case lines and of frames refuse bad input, and raise nothing else."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save

from harness.case import InvalidCase, parse
from harness.trace import Fragment, digest
from harness.wire.frames import MAGIC, PREFIX, ProtocolError, Reader, encode
from harness.wire.messages import Finished, FromRank, Piece
from harness.wire.payload import pack, unpack
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


def finished(run: int, kept: slice) -> Finished:
    pieces, tensors = pack(fragments()[kept])
    return Finished(
        run,
        pieces,
        tensors,
        skipped=["logits"],
        refusal="",
        limits="sp=2",
        idle=False,
        sent=8,
        embedded=5,
        hypotheses=[],
        order=[("sp of 1x2, ranks 0,1", "all_to_all", "[3]", "float64", 4)],
        stood_in=[],
        unemitted="",
    )


FINISHED = [finished(1, slice(4)), finished(20, slice(2)), finished(3, slice(3, 4))]


def mutant_lines(random: Random) -> Iterator[str]:
    while True:
        yield mutate(random.choice(LINES), random.choice(LINES), random)


def mutant_frames(random: Random) -> Iterator[bytes]:
    """Yield frames with wrong content, most of them with a right length."""

    def mutated(data: bytes, other: bytes) -> bytes:
        return mutate(data.decode("latin-1"), other.decode("latin-1"), random).encode("latin-1")

    while True:
        message, other = random.choice(FINISHED), random.choice(FINISHED)
        part, tensors = random.randrange(5), message.tensors
        if part < 2:
            at = random.randrange(len(tensors))
            with_new_byte = tensors[:at] + random.randbytes(1) + tensors[at + 1 :]
            tensors = mutated(tensors, other.tensors) if part else with_new_byte
            yield encode(msgspec.structs.replace(message, tensors=tensors))
            continue
        frame = mutated(encode(message), encode(other))
        if part > 2:
            body = frame[PREFIX.size :]
            frame = PREFIX.pack(MAGIC, len(body)) + body
        yield frame


def receive(data: bytes) -> None:
    """Decode frames that arrive in two pieces, and check the types of what comes out."""
    reader, cut = Reader[FromRank](FromRank), len(data) // 2
    messages = [message for piece in (data[:cut], data[cut:]) for message in reader.feed(piece)]
    for message in messages:
        assert isinstance(message, Finished)
        for fragment in unpack(message.pieces, message.tensors):
            assert (type(fragment.key), type(fragment.digest)) == (str, str)
            assert fragment.pads >= 0
            if fragment.tokens is not None:
                assert fragment.values is not None
                assert len(fragment.values) == len(fragment.tokens)
    if not messages:
        raise ProtocolError("bytes are still to come")


# A decoder, what makes mutants of its input, and the exception with which it refuses them.
Decoded = tuple[Callable[..., object], Callable[[Random], Iterator[Any]], type[Exception]]
DECODERS: dict[str, Decoded] = {
    "case lines": (parse, mutant_lines, InvalidCase),
    "frames": (receive, mutant_frames, ProtocolError),
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("count", [MUTANTS, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_accepts_or_refuses_every_mutant_of_its_input(name: str, count: int) -> None:
    decode, mutants, refusal = DECODERS[name]
    seen = fuzz(decode, mutants(Random(0)), refusal, count)
    assert seen["accepted"] > count // 20
    assert seen["refused"] > count // 4


def test_the_fuzzing_finds_a_case_parser_that_trusts_its_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trusting(_field: str, text: str) -> str:
        return "".join({"0": "0", "1": "1"}[bit] for bit in text)

    monkeypatch.setattr("harness.case.text.read_mask", trusting)
    with pytest.raises(KeyError):
        fuzz(parse, mutant_lines(Random(0)), InvalidCase, MUTANTS)


def test_the_fuzzing_finds_a_decoder_that_trusts_its_input() -> None:
    def trusting(data: bytes) -> None:
        for message in Reader[Any](Any).feed(data):
            message["pieces"]

    with pytest.raises((KeyError, TypeError)):
        fuzz(trusting, mutant_frames(Random(0)), ProtocolError, MUTANTS)


@pytest.mark.parametrize(
    "changed",
    [
        {"run": True},
        {"run": -1},
        {"run": 1 << 63},
        {"pieces": None},
        {"pieces": [("nll", -1, "")]},
        {"tensors": "text"},
        {"sent": [1]},
        {"sent": "4"},
        {"sent": -4},
        {"log": 5},
        {"log": [["g", float("inf"), "k", "[]", True, ""]]},
        {"order": [["g", "k", "many"]]},
        {"refusal": 5},
        {"type": "Run"},
        {"type": 3},
        {"more": 1},
    ],
)
def test_a_message_with_one_wrong_field_is_refused(changed: dict[str, Any]) -> None:
    fields = msgspec.to_builtins(FINISHED[0], builtin_types=(bytes,)) | changed
    body = msgspec.msgpack.encode(fields)
    with pytest.raises(ProtocolError):
        list(Reader[FromRank](FromRank).feed(PREFIX.pack(MAGIC, len(body)) + body))


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x03", b"\x80", b"\xff", b"\x91" * 100_000])
def test_a_frame_without_a_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Reader[FromRank](FromRank).feed(PREFIX.pack(MAGIC, len(body)) + body))


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [("nll", [1.0, 2.0], [0])],
        [("nll", 1.0, [0])],
        [("nll", None, [0])],
        [("nll", [1.0], [[0]])],
        [("nll", [1.0], [0.5])],
        [("nll", np.ones(1, np.float16), None)],
        [("nll", [1.0], None), ("loss", None, None)],
    ],
)
def test_tensors_that_do_not_fit_their_pieces_are_refused(
    tensors: list[tuple[str, Any, Any]],
) -> None:
    named = {
        f"{number}.{name}": np.asarray(tensor)
        for number, (_, *pair) in enumerate(tensors)
        for name, tensor in zip(("values", "tokens"), pair, strict=True)
        if tensor is not None
    }
    pieces = [Piece(key, 0, "") for key, *_ in tensors]
    if not any(tokens for _, _, tokens in tensors):
        # A tensor that belongs to no piece.
        named["7.values"] = np.ones(1)
    with pytest.raises(ProtocolError):
        unpack(pieces, save(named))


def test_fragments_are_the_same_after_encoding_and_decoding() -> None:
    (message,) = Reader[FromRank](FromRank).feed(encode(FINISHED[0]))
    assert message == FINISHED[0]
    decoded = unpack(FINISHED[0].pieces, FINISHED[0].tensors)
    for sent, got in zip(fragments(), decoded, strict=True):
        assert (got.key, got.pads, got.digest) == (sent.key, sent.pads, sent.digest)
        for before, after in ((sent.values, got.values), (sent.tokens, got.tokens)):
            assert (before is None) == (after is None)
            if before is not None and after is not None:
                assert (before.dtype, before.shape) == (after.dtype, after.shape)
                assert before.tobytes() == after.tobytes()
