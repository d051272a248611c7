"""The ranks that a candidate is asked on."""

from contextlib import ExitStack

from harness.conformance.request import Request
from harness.ranks.pool import RankPool


class Pools(ExitStack):
    """Ranks in one candidate's environment; exactly as many as a case needs.

    A library may make process groups of its own over all ranks there are.
    """

    def __init__(self, where: str, request: Request) -> None:
        super().__init__()
        self._where, self._request = where, request
        self._pools: dict[int, RankPool] = {}

    def of(self, ranks: int) -> RankPool:
        if ranks not in self._pools:
            pool = RankPool(
                ranks,
                self._request.placement,
                home=self._where,
                deadline=self._request.deadline,
            )
            self._pools[ranks] = self.enter_context(pool)
        return self._pools[ranks]

    @property
    def place(self) -> dict[str, str]:
        """Where the last of them runs; nowhere before there is one."""
        return [{}, *(pool.place for pool in self._pools.values())][-1]
