"""Counts by name, added up."""

from collections.abc import Mapping
from typing import Protocol, Self, TypeVar


class Adds(Protocol):
    """Numbers, counters, and what is made of them."""

    def __add__(self, other: Self, /) -> Self: ...


Each = TypeVar("Each", bound=Adds)


def together(one: Mapping[str, Each], other: Mapping[str, Each]) -> dict[str, Each]:
    """What is in both is added."""
    shared = one.keys() & other.keys()
    return {**one, **other, **{name: one[name] + other[name] for name in shared}}
