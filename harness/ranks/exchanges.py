"""Whether a candidate exchanged anything, at no cost where it can be had at none."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import distributed as dist

from harness.ranks.collectives import counts_since


class Exchanges:
    """Counts the all-to-alls that are called by name, which costs nothing.

    Reading the log costs a millisecond. It is needed only where nothing was counted: a candidate
    may exchange through functional collectives, or from C++.
    """

    def __init__(self) -> None:
        self.called = 0
        for name in ("all_to_all", "all_to_all_single"):
            setattr(dist, name, self._counted(getattr(dist, name)))

    def since(self, called: int, moment_ns: int, *, exactly: bool) -> dict[str, int]:
        """What was entered since `called` was read; every kind of collective if `exactly`."""
        if exactly or self.called == called:
            return counts_since(moment_ns)
        return {"all_to_all": self.called - called}

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.called += 1
            return function(*args, **kwargs)

        return counted
