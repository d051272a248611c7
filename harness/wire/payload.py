"""Fragments as pieces and safetensors bytes, and back."""

from collections.abc import Sequence

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from harness.trace import Fragment
from harness.wire.frames import ProtocolError
from harness.wire.messages import Piece

# The dtypes that can be compared, as numpy names them.
DTYPES = {"<f8", "<f4", "<i8", "<i4", "|b1"}
VALUES, TOKENS = "values", "tokens"


def pack(fragments: Sequence[Fragment]) -> tuple[list[Piece], bytes]:
    """Return one piece for each fragment, and the tensors of all fragments."""
    tensors = {}
    for number, f in enumerate(fragments):
        if f.tokens is not None:
            tensors[f"{number}.{TOKENS}"] = f.tokens
        if f.values is not None:
            values = np.asarray(f.values, order="C")
            if values.dtype.str not in DTYPES:
                raise TypeError(f"key {f.key!r}: a tensor of {values.dtype} cannot be judged")
            tensors[f"{number}.{VALUES}"] = values
    return [Piece(f.key, f.pads, f.digest) for f in fragments], save(tensors)


def unpack(pieces: Sequence[Piece], tensors: bytes) -> list[Fragment]:
    """Return the fragments; raise `ProtocolError` unless pieces and tensors fit exactly."""
    try:
        found = load(tensors)
    # Numpy raises these for an unknown dtype and for an impossible shape.
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"tensors: {error}") from None
    fragments = []
    for number, piece in enumerate(pieces):
        values = found.pop(f"{number}.{VALUES}", None)
        tokens = found.pop(f"{number}.{TOKENS}", None)
        if values is not None and values.dtype.str not in DTYPES:
            raise ProtocolError(f"key {piece.key!r}: unknown dtype {values.dtype}")
        if tokens is not None and (
            tokens.dtype != np.int64
            or tokens.ndim != 1
            or values is None
            or values.shape[:1] != tokens.shape
        ):
            raise ProtocolError(f"key {piece.key!r}: tokens without a row for each")
        fragments.append(Fragment(piece.key, values, tokens, piece.pads, piece.digest))
    if found:
        raise ProtocolError(f"{len(found)} tensors belong to no fragment")
    return fragments
