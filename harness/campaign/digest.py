"""A digest of cases that adds up: those of all shards come to that of the campaign."""

import hashlib
import re
from collections.abc import Iterable

from harness.case import Case

_BYTES = 8


def is_digest(text: str) -> bool:
    """Whether it can be one."""
    return re.fullmatch(f"[0-9a-f]{{{2 * _BYTES}}}", text) is not None


def digest(cases: Iterable[Case]) -> str:
    """Of these cases, in any order."""
    return add_up(hashlib.sha256(str(case).encode()).hexdigest()[: 2 * _BYTES] for case in cases)


def add_up(digests: Iterable[str]) -> str:
    """That of all cases, from those of parts of them."""
    total = sum(int(each, 16) for each in digests) % (1 << 8 * _BYTES)
    return f"{total:0{2 * _BYTES}x}"
