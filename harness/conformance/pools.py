"""The ranks that a candidate is asked on."""

from contextlib import ExitStack

from harness.conformance.request import Request
from harness.judge import Session
from harness.ranks.pool import RankPool


class Pools(ExitStack):
    """Ranks in one candidate's environment; exactly as many as a case needs.

    A library may make process groups of its own over all ranks there are.
    """

    def __init__(self, where: str, request: Request) -> None:
        super().__init__()
        self._where, self._request = where, request
        self._sessions: dict[int, Session] = {}

    def of(self, ranks: int) -> Session:
        if ranks not in self._sessions:
            pool = RankPool(
                ranks,
                self._request.placement,
                home=self._where,
                deadline=self._request.deadline,
            )
            self._sessions[ranks] = Session(self.enter_context(pool))
        return self._sessions[ranks]

    @property
    def place(self) -> dict[str, str]:
        """Where the last of them runs; nowhere before there is one."""
        return [{}, *(each.pool.place for each in self._sessions.values())][-1]
