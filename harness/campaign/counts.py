"""Counts by name, added up, and what a document may hold of numbers."""

import sys
from collections.abc import Mapping
from typing import Annotated, Protocol, Self, TypeVar

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=0)]
# JSON, as Python reads it, has infinity as well.
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=sys.float_info.max)]


class Adds(Protocol):
    """Numbers, counters, and what is made of them."""

    def __add__(self, other: Self, /) -> Self: ...


Each = TypeVar("Each", bound=Adds)


def together(one: Mapping[str, Each], other: Mapping[str, Each]) -> dict[str, Each]:
    """What is in both is added."""
    shared = one.keys() & other.keys()
    return {**one, **other, **{name: one[name] + other[name] for name in shared}}
