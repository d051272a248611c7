"""A digest of cases that adds up: those of all parts of a lot come to that of the lot."""

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec

from harness.campaign.counts import Whole
from harness.case import Case

_BYTES = 8
Digest = Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{2 * _BYTES}}}\Z")]


def digest(cases: Iterable[Case]) -> str:
    """Digest these cases, in any order."""
    return add_up(hashlib.sha256(str(case).encode()).hexdigest()[: 2 * _BYTES] for case in cases)


def add_up(digests: Iterable[str]) -> str:
    """That of all cases, from those of parts of them."""
    total = sum(int(each, 16) for each in digests) % (1 << 8 * _BYTES)
    return f"{total:0{2 * _BYTES}x}"


class Begun(msgspec.Struct, forbid_unknown_fields=True):
    """How many cases of one lot were begun, a digest of them, and one of all that it has."""

    drawn: Digest
    count: Whole = 0
    judged: Digest = f"{0:0{2 * _BYTES}x}"

    def begin(self, case: Case) -> None:
        self.count += 1
        self.judged = add_up((self.judged, digest([case])))

    def __add__(self, other: "Begun") -> "Begun":
        judged = add_up((self.judged, other.judged))
        return Begun(self.drawn, self.count + other.count, judged)

    def is_of(self, size: int) -> bool:
        """Whether so many can have been begun, and are those of the lot if they are all."""
        return self.count < size or (self.count == size and self.judged == self.drawn)
