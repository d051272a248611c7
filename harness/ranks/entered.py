"""In which order this rank enters collectives, noted in every run.

Torch's log has every collective, and reading it costs milliseconds: only a traced run is worth
that. What is started in Python, as in hooks on gradients, passes through the methods of a group,
where to note it costs some two microseconds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any

from harness.ranks.collectives import GATE, Collective, members

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# What the names of methods that are collectives begin with.
KINDS = ("all", "barrier", "broadcast", "gather", "reduce", "scatter")
# Of a group, one kind, so many in a row.
Row = tuple[str, str, int]


class Entered:
    """Notes what is entered from now on."""

    def __init__(self) -> None:
        # Whoever only reads what was noted needs no torch.
        from torch.distributed import ProcessGroup

        self._entered: list[tuple[ProcessGroup, str]] = []
        for name in dir(ProcessGroup):
            if name.lstrip("_").startswith(KINDS):
                self._note(ProcessGroup, name)

    def told(self) -> list[Row]:
        """What was entered since this was asked last; without what the harness entered."""
        told: list[Row] = []
        for (group, kind), run in groupby(self._entered):
            name = _called(group.group_desc, group.group_name)
            if not name.startswith(GATE):
                told.append((name, kind, len(list(run))))
        self._entered.clear()
        return told

    def _note(self, owner: "type[ProcessGroup]", name: str) -> None:
        method, kind = getattr(owner, name), name.lstrip("_")

        @wraps(method)
        def noted(group: "ProcessGroup", *args: Any, **kwargs: Any) -> Any:
            self._entered.append((group, kind))
            return method(group, *args, **kwargs)

        setattr(owner, name, noted)


@cache
def _called(description: str, name: str) -> str:
    """A group as the log calls it."""
    return description if members(description) else f"{description} ({name})"


def one_by_one(orders: Mapping[int, Sequence[Row]]) -> dict[int, list[Collective]]:
    """The same one by one, by rank; nothing where all ranks entered the same."""
    alike = {
        tuple((group.partition(", ranks ")[0], *run) for group, *run in order)
        for order in orders.values()
    }
    return {} if len(alike) == 1 else {rank: _each(order) for rank, order in orders.items()}


def _each(order: Sequence[Row]) -> list[Collective]:
    numbers = Counter[str]()
    collectives = []
    for group, kind, count in order:
        for _ in range(count):
            numbers[group] += 1
            collectives.append(Collective(group, numbers[group], kind, "", done=True))
    return collectives
