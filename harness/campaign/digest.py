"""A digest of cases that adds up: the digests of all parts of a lot sum to the lot's digest."""

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec

from harness.campaign.counts import Count
from harness.case import Case

_BYTES = 8
Digest = Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{2 * _BYTES}}}\Z")]


def digest(cases: Iterable[Case]) -> str:
    """Digest these cases; their order does not matter."""
    return add_up(hashlib.sha256(str(case).encode()).hexdigest()[: 2 * _BYTES] for case in cases)


def add_up(digests: Iterable[str]) -> str:
    """Return the digest of all cases, from the digests of parts of them."""
    total = sum(int(part, 16) for part in digests) % (1 << 8 * _BYTES)
    return f"{total:0{2 * _BYTES}x}"


class BegunCases(msgspec.Struct, forbid_unknown_fields=True):
    """How many cases of one lot were begun, and their digest; `drawn` is that of the whole lot."""

    drawn: Digest
    count: Count = 0
    judged: Digest = f"{0:0{2 * _BYTES}x}"

    def add(self, case: Case) -> None:
        self.count += 1
        self.judged = add_up((self.judged, digest([case])))

    def __add__(self, other: "BegunCases") -> "BegunCases":
        judged = add_up((self.judged, other.judged))
        return BegunCases(self.drawn, self.count + other.count, judged)

    def is_possible(self, size: int) -> bool:
        """Whether these can be cases of a lot of this size: fewer than all, or exactly all."""
        return self.count < size or (self.count == size and self.judged == self.drawn)
