"""Differing tensors as one safetensors file, and back. No pickle."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from harness.compare import Differing
from harness.untrusted import Misfit

PARTS = ("expected", "got", "rows", "tokens")


class Described(msgspec.Struct, frozen=True):
    """What a record has of one tensor."""

    key: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


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


def unpack(described: Sequence[Described], data: bytes) -> tuple[Differing, ...]:
    """The tensors; `Misfit` unless description and file fit exactly."""
    try:
        arrays = load(data)
    except (SafetensorError, KeyError, ValueError):
        raise Misfit("is no safetensors file of this harness") from None
    tensors = tuple(_take(one, arrays) for one in described)
    if arrays:
        raise Misfit(f"{len(arrays)} tensors in it belong to no key")
    return tensors


def _take(described: Described, arrays: dict[str, Any]) -> Differing:
    key, shape = described.key, described.shape
    expected, got, rows, tokens = (arrays.pop(f"{key}/{part}", None) for part in PARTS)
    if expected is None or got is None:
        raise Misfit("a key of the record has no tensors in it")
    held = expected.shape[:1] if rows is not None else shape[:1]
    fitting = expected.shape == got.shape == (*held, *shape[1:]) and all(
        numbers is None or (numbers.dtype == np.int64 and numbers.shape == held)
        for numbers in (rows, tokens)
    )
    if not fitting:
        raise Misfit("the tensors of a key do not fit together")
    return Differing(key=key, shape=shape, expected=expected, got=got, rows=rows, tokens=tokens)
