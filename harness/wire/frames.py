"""Messages as bytes: msgpack frames, each behind a magic number and its length.

Bytes that are not exactly an expected message are refused. No received byte can execute anything.
"""

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from harness.wire.messages import Message

MAGIC = b"UHP2"
PREFIX = struct.Struct(">4sQ")
MAX_FRAME = 1 << 36
# The limit for a process that has not sent its `Hello` yet.
MAX_HELLO = 1 << 12


class ProtocolError(ValueError):
    """Bytes that no honest peer sends."""


_ENCODER = msgspec.msgpack.Encoder()
Received = TypeVar("Received")


def encode(message: Message) -> bytes:
    """Return the frame of a message."""
    body = _ENCODER.encode(message)
    return PREFIX.pack(MAGIC, len(body)) + body


class Reader(Generic[Received]):
    """Turns received bytes into messages of the given types, however the bytes were cut."""

    def __init__(self, kinds: Any, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(kinds)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Received]:
        """Yield every message that these bytes complete; raise `ProtocolError` for a bad one."""
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
