"""Numbers as a document may hold them, and mappings of numbers that add up by name."""

import sys
from collections.abc import Mapping
from typing import Annotated, Protocol, Self, TypeVar

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
# Python reads JSON that holds infinity, which no document of ours has.
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=sys.float_info.max)]


class Addable(Protocol):
    """A number, a counter, or a record made of these."""

    def __add__(self, other: Self, /) -> Self: ...


Value = TypeVar("Value", bound=Addable)


def add_by_name(one: Mapping[str, Value], other: Mapping[str, Value]) -> dict[str, Value]:
    """Return the names of both mappings; add the values of a name that both have."""
    shared = one.keys() & other.keys()
    return {**one, **other, **{name: one[name] + other[name] for name in shared}}
