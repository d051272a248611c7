"""A fragment, which one rank emits, and the digest by which copies are compared."""

import hashlib
from dataclasses import dataclass

import numpy as np

from harness.trace.trace import Tokens, Values

# The token number that a candidate's own sharding gives to padding.
PAD_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Fragment:
    """A key and a tensor: rows for `tokens`, or without tokens a replica of the whole.

    Without a full trace, only rank 0 sends the values of a replica. The other ranks send its
    digest, which is enough to compare copies.
    """

    key: str
    values: Values | None
    tokens: Tokens | None = None
    pads: int = 0
    digest: str = ""


def bits(values: Values) -> Values:
    """Return a contiguous copy in which negative zeros are positive, so that bits compare."""
    return np.ascontiguousarray(values + values.dtype.type(0))


def digest(values: Values) -> str:
    """Return a digest of a tensor's bits, shape and type."""
    contiguous = bits(values)
    head = f"{contiguous.dtype.str}{contiguous.shape}".encode()
    return hashlib.blake2b(contiguous.data, digest_size=16, key=head[:64]).hexdigest()
