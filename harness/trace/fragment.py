"""What one rank emits."""

import hashlib
from dataclasses import dataclass

import numpy as np

from harness.trace.trace import Tokens, Values

# The token number that a candidate's own sharding gives to padding.
PAD_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Fragment:
    """A key and a tensor: rows for `tokens`, or without tokens a replica of the whole.

    Only rank 0 sends the values of a replica unless a full trace is wanted; the others send a
    digest, which is all that agreement needs.
    """

    key: str
    values: Values | None
    tokens: Tokens | None = None
    pads: int = 0
    digest: str = ""


def bits(values: Values) -> Values:
    """Copy it into one piece of memory, with zeros that have no sign."""
    return np.ascontiguousarray(values + values.dtype.type(0))


def digest(values: Values) -> str:
    """A fingerprint of a tensor's bits, shape and type."""
    contiguous = bits(values)
    head = f"{contiguous.dtype.str}{contiguous.shape}".encode()
    return hashlib.blake2b(contiguous.data, digest_size=16, key=head[:64]).hexdigest()
