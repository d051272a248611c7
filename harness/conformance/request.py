"""The request of an examination, equal for every candidate."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.rank_program.placement import Placement


@dataclass(frozen=True, slots=True)
class Request:
    """How many cases, from which seed, on which devices, and how long a case may take."""

    # Generated cases for each sp.
    count: int = 100
    seed: int = 0
    placement: Placement = field(default_factory=Placement)
    deadline: float = 60.0
    # By entry, settings that all drawn cases state; the others are drawn.
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
