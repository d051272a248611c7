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
    """One tensor as the record describes it."""

    key: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


def pack(tensors: Sequence[Differing]) -> tuple[list[dict[str, Any]], bytes]:
    """Return the descriptions of the tensors, in execution order, and the safetensors file."""
    arrays = {}
    for tensor in tensors:
        parts = (tensor.expected, tensor.got, tensor.rows, tensor.tokens)
        for part, values in zip(PARTS, parts, strict=True):
            if values is not None:
                arrays[f"{tensor.key}/{part}"] = values
    described = [{"key": tensor.key, "shape": list(tensor.shape)} for tensor in tensors]
    # The metadata has a single key, because safetensors writes several in any order.
    return described, save(arrays, {"harness": json.dumps(described)})


def unpack(described: Sequence[Described], data: bytes) -> tuple[Differing, ...]:
    """Return the tensors in a file; raise `Misfit` unless it has exactly what is described."""
    try:
        arrays = load(data)
    except (SafetensorError, KeyError, ValueError):
        raise Misfit("is no safetensors file of this harness") from None
    tensors = tuple(_take_tensor(description, arrays) for description in described)
    if arrays:
        raise Misfit(f"{len(arrays)} tensors in it belong to no key")
    return tensors


def _take_tensor(described: Described, arrays: dict[str, Any]) -> Differing:
    """Remove the arrays of one tensor and return it; raise `Misfit` if they do not fit."""
    key, shape = described.key, described.shape
    expected, got, rows, tokens = (arrays.pop(f"{key}/{part}", None) for part in PARTS)
    if expected is None or got is None:
        raise Misfit("a key of the record has no tensors in it")
    kept_rows = expected.shape[:1] if rows is not None else shape[:1]
    fits = expected.shape == got.shape == (*kept_rows, *shape[1:]) and all(
        numbers is None or (numbers.dtype == np.int64 and numbers.shape == kept_rows)
        for numbers in (rows, tokens)
    )
    if not fits:
        raise Misfit("the tensors of a key do not fit together")
    return Differing(key=key, shape=shape, expected=expected, got=got, rows=rows, tokens=tokens)
