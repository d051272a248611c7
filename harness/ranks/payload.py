"""Fragments as a header and raw bytes, and back."""

import math
from typing import Any

import numpy as np

from harness.ranks.wire import ProtocolError
from harness.trace import Fragment

DTYPES = {"<f8", "<f4", "<i8", "<i4", "|b1"}
MAX_DIMS = 8


def pack(fragments: list[Fragment]) -> tuple[list[dict[str, Any]], bytes]:
    """One description per fragment, and all their bytes in the same order."""
    described, parts = [], []
    for f in fragments:
        item: dict[str, Any] = {"key": f.key}
        if f.digest:
            item["digest"] = f.digest
        if f.tokens is not None:
            item |= {"tokens": len(f.tokens), "pads": f.pads}
            parts.append(f.tokens.astype("<i8").tobytes())
        if f.values is not None:
            values = np.ascontiguousarray(f.values)
            if values.dtype.str not in DTYPES:
                raise TypeError(f"key {f.key!r}: a tensor of {values.dtype} cannot be judged")
            item |= {"dtype": values.dtype.str, "shape": list(f.values.shape)}
            parts.append(values.tobytes())
        described.append(item)
    return described, b"".join(parts)


def unpack(described: object, payload: bytes) -> list[Fragment]:
    """The fragments; `ProtocolError` unless description and bytes fit exactly."""
    if not isinstance(described, list):
        raise ProtocolError("fragments are not a list")
    fragments, at = [], 0
    for item in described:
        fragment, at = _fragment(item, payload, at)
        fragments.append(fragment)
    if at != len(payload):
        raise ProtocolError(f"{len(payload) - at} bytes belong to no fragment")
    return fragments


def _fragment(item: object, payload: bytes, at: int) -> tuple[Fragment, int]:
    if not isinstance(item, dict) or not isinstance(item.get("key"), str):
        raise ProtocolError("a fragment is not an object with a key")
    key, digest = item["key"], item.get("digest", "")
    if not isinstance(digest, str):
        raise ProtocolError(f"key {key!r}: its digest is not text")
    tokens = values = None
    if "tokens" in item:
        tokens, at = _take(key, "<i8", (_size(key, item["tokens"]),), payload, at)
    if "dtype" in item:
        shape = item.get("shape")
        if not isinstance(shape, list) or len(shape) > MAX_DIMS:
            raise ProtocolError(f"key {key!r}: shape {str(shape)[:60]} is not a short list")
        if not isinstance(item["dtype"], str) or item["dtype"] not in DTYPES:
            raise ProtocolError(f"key {key!r}: unknown dtype {str(item['dtype'])[:20]}")
        sizes = tuple(_size(key, size) for size in shape)
        values, at = _take(key, item["dtype"], sizes, payload, at)
    if tokens is not None and (values is None or values.shape[:1] != tokens.shape):
        raise ProtocolError(f"key {key!r}: {len(tokens)} tokens without a row for each")
    return Fragment(key, values, tokens, _size(key, item.get("pads", 0)), digest), at


def _size(key: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ProtocolError(f"key {key!r}: {str(value)[:30]} is not a size")
    return value


def _take(
    key: str, dtype: str, shape: tuple[int, ...], payload: bytes, at: int
) -> tuple[Any, int]:
    count = math.prod(shape)
    end = at + count * np.dtype(dtype).itemsize
    if end > len(payload):
        raise ProtocolError(f"key {key!r}: needs {end - len(payload)} bytes more than came")
    try:
        return np.frombuffer(payload, dtype, count, at).reshape(shape), end
    except ValueError as error:
        raise ProtocolError(f"key {key!r}: shape {shape}: {error}") from None
