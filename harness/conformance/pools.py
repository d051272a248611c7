"""The pools of ranks that a candidate is judged on."""

from contextlib import ExitStack

from harness.conformance.request import Request
from harness.judge import Session
from harness.ranks.pool import RankPool


class Pools(ExitStack):
    """Pools in one candidate's environment, one for each number of ranks.

    A case gets exactly as many ranks as it needs: a library may make process groups over all
    ranks that there are.
    """

    def __init__(self, home: str, request: Request) -> None:
        super().__init__()
        self._home, self._request = home, request
        self._sessions: dict[int, Session] = {}

    def of(self, ranks: int) -> Session:
        """Return the session on so many ranks; open their pool when it is first needed."""
        if ranks not in self._sessions:
            pool = RankPool(
                ranks,
                self._request.placement,
                home=self._home,
                deadline=self._request.deadline,
            )
            self._sessions[ranks] = Session(self.enter_context(pool))
        return self._sessions[ranks]

    @property
    def place(self) -> dict[str, str]:
        """Where the pool runs that was opened last; empty if there is none."""
        return [{}, *(session.pool.place for session in self._sessions.values())][-1]
