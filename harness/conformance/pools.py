"""What is asked of every candidate, and the ranks to ask it of."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from harness.ranks.placement import Placement
from harness.ranks.pool import RankPool


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of every candidate."""

    # Generated cases for each sp.
    count: int = 100
    seed: int = 0
    placement: Placement = field(default_factory=Placement)
    deadline: float = 60.0


class Pools:
    """Ranks in one candidate's environment; exactly as many as a case needs.

    A library may make process groups of its own over all ranks there are.
    """

    def __init__(self, where: str, request: Request) -> None:
        self._where, self._request = where, request
        self._stack = ExitStack()
        self._pools: dict[int, RankPool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def of(self, ranks: int) -> RankPool:
        if ranks not in self._pools:
            pool = RankPool(
                ranks,
                self._request.placement,
                home=self._where,
                deadline=self._request.deadline,
            )
            self._pools[ranks] = self._stack.enter_context(pool)
        return self._pools[ranks]
