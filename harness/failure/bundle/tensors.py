"""Differing tensors as one safetensors file, and back. No pickle."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from harness.compare import Differing

PARTS = ("expected", "got", "rows", "tokens")


class Malformed(ValueError):
    """What is in a file of a bundle and cannot be there."""


def pack(tensors: Sequence[Differing]) -> tuple[list[dict[str, Any]], bytes]:
    """What they are, in execution order, and the file."""
    arrays = {}
    for one in tensors:
        parts = (one.expected, one.got, one.rows, one.tokens)
        for part, values in zip(PARTS, parts, strict=True):
            if values is not None:
                arrays[f"{one.key}/{part}"] = values
    described = [{"key": one.key, "shape": list(one.shape)} for one in tensors]
    # One key: the order of several would change from one run to the next.
    return described, save(arrays, {"harness": json.dumps(described)})


def unpack(described: object, data: bytes) -> tuple[Differing, ...]:
    """The tensors; `Malformed` unless description and file fit exactly."""
    try:
        arrays = load(data)
    except (SafetensorError, KeyError, ValueError):
        raise Malformed("is no safetensors file of this harness") from None
    if not isinstance(described, list):
        raise Malformed("tensors are not a list")
    tensors = tuple(_take(item, arrays) for item in described)
    if arrays:
        raise Malformed(f"{len(arrays)} tensors in it belong to no key")
    return tensors


def _take(item: object, arrays: dict[str, Any]) -> Differing:
    if not isinstance(item, dict) or not isinstance(item.get("key"), str):
        raise Malformed("a tensor is not an object with a key")
    key, shape = item["key"], item.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise Malformed("the shape of a tensor is not a list of sizes")
    expected, got, rows, tokens = (arrays.pop(f"{key}/{part}", None) for part in PARTS)
    if expected is None or got is None:
        raise Malformed("a key of the record has no tensors in it")
    held = expected.shape[:1] if rows is not None else tuple(shape[:1])
    fitting = expected.shape == got.shape == (*held, *shape[1:]) and all(
        numbers is None or (numbers.dtype == np.int64 and numbers.shape == held)
        for numbers in (rows, tokens)
    )
    if not fitting:
        raise Malformed("the tensors of a key do not fit together")
    return Differing(
        key=key, shape=tuple(shape), expected=expected, got=got, rows=rows, tokens=tokens
    )
