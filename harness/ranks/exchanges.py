"""Whether a candidate exchanged anything, at no cost where it can be had at none."""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import distributed as dist

from harness.ranks.collectives import counts_since

# What is called by name, and what it counts as. gloo's log has neither messages nor the
# scattering of what was reduced.
CALLS = {
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "batch_isend_irecv": "messages",
    "reduce_scatter_tensor": "reduce_scatter",
}


class Exchanges:
    """Counts what is called by name, which costs nothing.

    Reading the log costs a millisecond. It is needed only where no all-to-all was counted: a
    candidate may exchange through functional collectives, or from C++.
    """

    def __init__(self) -> None:
        self._called: Counter[str] = Counter()
        for name, kind in CALLS.items():
            setattr(dist, name, self._counted(getattr(dist, name), kind))

    @property
    def called(self) -> Counter[str]:
        """So far, by kind."""
        return self._called.copy()

    def since(self, called: Counter[str], moment_ns: int, *, exactly: bool) -> dict[str, int]:
        """What was entered since `called` was read; every kind of collective if `exactly`."""
        counted = self._called - called
        if exactly or not counted["all_to_all"]:
            return {**counted, **counts_since(moment_ns)}
        return dict(counted)

    def _counted(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._called[kind] += 1
            return function(*args, **kwargs)

        return counted
