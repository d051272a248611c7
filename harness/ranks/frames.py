"""Messages as bytes: each is a frame of msgpack, behind a magic number and its length.

What is not exactly a message that may come is refused, and nothing that was sent executes.
"""

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from harness.ranks.messages import Message

MAGIC = b"UHP2"
PREFIX = struct.Struct(">4sQ")
MAX_FRAME = 1 << 36
# The limit for a process that has not said yet which rank it is.
MAX_HELLO = 1 << 12


class ProtocolError(ValueError):
    """Bytes that no honest peer sends."""


_ENCODER = msgspec.msgpack.Encoder()
Kind = TypeVar("Kind")


def encode(message: Message) -> bytes:
    """A frame."""
    body = _ENCODER.encode(message)
    return PREFIX.pack(MAGIC, len(body)) + body


class Reader(Generic[Kind]):
    """Turns received bytes into messages of some kinds, however they were cut on the way."""

    def __init__(self, kinds: Any, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._decoder: msgspec.msgpack.Decoder[Kind] = msgspec.msgpack.Decoder(kinds)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Kind]:
        """Every message completed by these bytes."""
        self._buffer += data
        while len(self._buffer) >= PREFIX.size:
            magic, size = PREFIX.unpack_from(self._buffer)
            if magic != MAGIC:
                raise ProtocolError(f"a frame starts with {magic!r} instead of {MAGIC!r}")
            if size > self.limit:
                raise ProtocolError(f"a frame claims {size} bytes")
            end = PREFIX.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[PREFIX.size : end])
            del self._buffer[:end]
            try:
                message = self._decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(str(error)) from None
            yield message
