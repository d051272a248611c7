"""What happened to the ranks, asked of the living and read from the dead."""

import time
from dataclasses import dataclass
from typing import Any

from harness.ranks.collectives import Collective, first_disagreement
from harness.ranks.launch import Launch
from harness.ranks.wire import encode
from harness.trace import Fault, Kind

# How long living ranks get to say where they are, and torchrun to say how a dead one ended.
PATIENCE = 1.0

# A death explains the exceptions of its peers, and both explain a wait; never the reverse.
BLAME = (
    Kind.PROTOCOL,
    Kind.STALE,
    Kind.LAUNCHER,
    Kind.START,
    Kind.DIED,
    Kind.RAISED,
    Kind.HUNG,
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that went wrong, before it is known what caused what."""

    kind: Kind
    text: str
    rank: int | None = None
    moment: float = 0.0
    stack: str = ""

    @property
    def rank_of_blame(self) -> tuple[int, float]:
        """Smallest is the cause."""
        return BLAME.index(self.kind), self.moment


def autopsy(launch: Launch, root: Trouble, *, needed: int, finished: list[int]) -> Fault:
    """The fault, with what every rank that the case needed was doing."""
    reports = _reports(launch)
    logs = {rank: _collectives(report) for rank, report in reports.items()}
    stacks = {rank: str(report.get("stack", "")) for rank, report in reports.items()}
    if root.stack and root.rank is not None:
        stacks[root.rank] = root.stack
    keys = {rank: launch.progress(rank) for rank in range(max(needed, 1))}
    ranks = [
        _doing(rank, keys.get(rank, ""), logs.get(rank), done=rank in finished)
        for rank in range(needed)
    ]
    disagreement = first_disagreement({rank: logs[rank] for rank in logs if rank < needed})
    if disagreement and root.kind in (Kind.HUNG, Kind.RAISED):
        ranks.insert(0, disagreement)
    text = root.text
    if root.kind is Kind.DIED and root.rank is not None:
        text = f"{text}, {launch.exit_of(root.rank, PATIENCE)}"
    if root.kind is Kind.HUNG:
        missing = [str(rank) for rank in range(needed) if rank not in finished]
        text = f"{text} from rank {', '.join(missing)}"
    who = f"rank {root.rank} " if root.rank is not None else ""
    return Fault(
        kind=root.kind,
        summary=f"{who}{text}",
        rank=root.rank,
        last_key=keys.get(root.rank or 0, ""),
        ranks=tuple(ranks),
        stacks=stacks,
        log=launch.log(root.rank) or launch.log(None),
    )


def _reports(launch: Launch) -> dict[int, dict[str, Any]]:
    asked = {rank for rank in launch.links if launch.send(rank, encode("report"))}
    reports: dict[int, dict[str, Any]] = {}
    until = time.monotonic() + PATIENCE
    while asked - set(reports) and (left := until - time.monotonic()) > 0:
        for event in launch.events(left):
            if event.rank is not None and event.frame and event.frame.kind == "report":
                reports[event.rank] = event.frame.header
            elif event.rank is not None and event.frame is None:
                asked.discard(event.rank)
    return reports


def _collectives(report: dict[str, Any]) -> list[Collective]:
    entries = report.get("collectives")
    if not isinstance(entries, list):
        return []
    return [
        Collective(str(group), int(sequence), str(kind), str(shape), bool(done))
        for group, sequence, kind, shape, done in entries
    ]


def _doing(rank: int, key: str, log: list[Collective] | None, *, done: bool) -> str:
    if log is None:
        return f"rank {rank}: gone or not answering; last key reached {key or 'none'}"
    if done:
        return f"rank {rank}: finished"
    waiting = [entry for entry in log if not entry.done]
    where = f"waits in {waiting[-1]}" if waiting else "is in no collective"
    return f"rank {rank}: {where}; last key reached {key or 'none'}"
