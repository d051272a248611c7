"""Frames on the socket between controller and ranks: a JSON header and raw bytes, no pickle.

magic "UHP1" | header length, 4 bytes | payload length, 8 bytes | header | payload
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.outside import printable

MAGIC = b"UHP1"
PREFIX = struct.Struct(">4sIQ")
MAX_HEADER = 1 << 26
MAX_FRAME = 1 << 36
# Of those who have not said yet who they are.
MAX_HELLO = 1 << 12


class ProtocolError(ValueError):
    """Bytes that no honest peer sends."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: str
    header: dict[str, Any]
    payload: bytes = b""

    def whole(self, name: str) -> int:
        """A header field that must be a whole number, zero or more."""
        value = self.header.get(name)
        if type(value) is not int or value < 0:
            raise ProtocolError(f"{self.kind}.{name}={value!r} is not a whole number")
        return value

    def text(self, name: str) -> str:
        """A header field that must be text."""
        value = self.header.get(name)
        if not isinstance(value, str):
            raise ProtocolError(f"{self.kind}.{name}={value!r} is not text")
        return printable(value)

    def texts(self, name: str) -> dict[str, str]:
        """A header field that must be text by name."""
        value = self.header.get(name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise ProtocolError(f"{self.kind}.{name} is not text by name")
        return {key: printable(text) for key, text in value.items()}


def encode(kind: str, payload: bytes = b"", **header: object) -> bytes:
    """A frame as bytes."""
    head = json.dumps({"kind": kind, **header}).encode()
    return PREFIX.pack(MAGIC, len(head), len(payload)) + head + payload


class FrameReader:
    """Turns received bytes into frames, however they were cut on the way."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame completed by these bytes."""
        self._buffer += data
        while len(self._buffer) >= PREFIX.size:
            magic, header_size, payload_size = PREFIX.unpack_from(self._buffer)
            if magic != MAGIC:
                raise ProtocolError(f"a frame starts with {magic!r} instead of {MAGIC!r}")
            if header_size > MAX_HEADER or header_size + payload_size > self.limit:
                raise ProtocolError(f"a frame claims {header_size} + {payload_size} bytes")
            end = PREFIX.size + header_size + payload_size
            if len(self._buffer) < end:
                return
            head = bytes(self._buffer[PREFIX.size : PREFIX.size + header_size])
            payload = bytes(self._buffer[PREFIX.size + header_size : end])
            del self._buffer[:end]
            yield _frame(head, payload)


def _frame(head: bytes, payload: bytes) -> Frame:
    try:
        header = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a header is not JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise ProtocolError("a header is not an object with a kind")
    return Frame(header.pop("kind"), header, payload)
