"""How something that went wrong becomes a fault: one way, stage by stage.

1. Noticed: a process ended, or said what is no answer, or said nothing for too long.
2. Gathered: what comes of it, or came with it, within moments. The cause stands first.
3. Asked: the living say what they do; of the dead is read what they left.
4. Named: the rank that is to blame, and how it ended.
5. Told: the `Fault`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten

from harness.ranks.launch import Launch
from harness.ranks.link import Event
from harness.ranks.messages import Doing, Probe
from harness.trace import WAITS, Fault, Kind
from harness.watch.collectives import GATE, Collective, first_disagreement
from harness.watch.flight_recorder import BUFFER

# One rank's incident becomes its peers' within moments: wait for theirs, then name the first.
GRACE, LONGEST_GRACE, POLL = 0.3, 2.0, 0.02
# How long living ranks get to say where they are, and then a supervisor to say how one ended.
# Both together stay within the time that a fault may take after its deadline.
PATIENCE = 2.0
LINE = 120
# A death explains the end of a supervisor, both explain the exceptions of peers, and all of them a
# wait; never the reverse.
BLAME = (
    Kind.PROTOCOL,
    Kind.STALE,
    Kind.START,
    Kind.DIED,
    Kind.LAUNCHER,
    Kind.RAISED,
    Kind.HUNG,
)


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that was noticed, and of which rank, before it is known what caused what."""

    kind: Kind
    text: str
    rank: int | None = None
    # The run that the rank itself spoke of.
    run: int | None = None
    moment: int = 0
    # Nothing happened, and that for too long.
    late: bool = False
    stack: str = ""

    @property
    def rank_of_blame(self) -> tuple[int, int]:
        """Smallest is the cause."""
        return BLAME.index(self.kind), self.moment


class FaultReport:
    """What is known of one fault so far."""

    def __init__(self, launch: Launch, noticed: Sequence[Incident]) -> None:
        self._launch, self._incidents = launch, [*noticed]
        # Before anything is done about it: the last key that each rank reached.
        self._keys = [launch.progress(rank) for rank in range(launch.size)]
        self._doing: dict[int, Doing] = {}

    @property
    def root(self) -> Incident:
        """The cause, as far as it is known."""
        return self._incidents[0]

    def gather(self, more: Callable[[float], list[Incident]]) -> None:
        """What comes of it; `more` waits so many seconds for that."""
        started = time.monotonic()
        while (passed := time.monotonic() - started) < self._patience():
            self._incidents += more(max(GRACE - passed, POLL))
        self._incidents.sort(key=lambda incident: incident.rank_of_blame)

    def _patience(self) -> float:
        # A process that ends may take its peers' sockets away long before it lets go of ours.
        ending = any(link.is_ending() for link in self._launch.links.values())
        return LONGEST_GRACE if ending else GRACE

    def fault(self, needed: int, finished: Sequence[int]) -> Fault:
        """Make the fault of a case that needs so many ranks, and that these have finished."""
        launch = self._launch
        self._doing, _ = ask(launch, PATIENCE)
        # Other hosts have been asked only now.
        there = range(launch.order.ranks, launch.size)
        self._keys[launch.order.ranks :] = map(launch.progress, there)
        logs = {rank: doing.collectives for rank, doing in self._doing.items()}
        root = self._named([rank for rank in range(needed) if rank not in finished], logs)
        return Fault(
            kind=root.kind,
            summary=root.text if root.rank is None else f"rank {root.rank} {root.text}",
            rank=root.rank,
            last_key="" if root.rank is None else self._keys[root.rank],
            ranks=tuple(self._lines(needed, finished, logs)),
            stacks=self._stacks(),
            log=(root.rank is not None and launch.log(root.rank)) or launch.log(None),
            logs=launch.logs(),
            collectives={rank: tuple(map(_told, logs[rank])) for rank in sorted(logs)},
        )

    def _named(self, missing: list[int], logs: dict[int, list[Collective]]) -> Incident:
        root = self.root
        if root.kind is Kind.HUNG:
            return told_by_waiting(root, missing, logs)
        if root.kind in (Kind.START, Kind.DIED) and root.rank is not None and not root.late:
            return _with_its_end(self._launch, root, root.rank)
        return root

    def _lines(
        self, needed: int, finished: Sequence[int], logs: dict[int, list[Collective]]
    ) -> list[str]:
        """What each rank was doing that the case concerns, and where they part."""
        lines, root = [], self.root
        raised = {t.rank: t for t in reversed(self._incidents) if t.stack}
        for rank in sorted({*range(needed), *([] if root.rank is None else [root.rank])}):
            if rank in finished and rank in logs:
                lines.append(f"rank {rank}: finished")
                continue
            doing = _doing(raised.get(rank), logs.get(rank))
            last = self._keys[rank] or "none"
            lines.append(f"rank {rank}: {doing}; last key reached: {last}")
        needed_logs = {rank: logs[rank] for rank in logs if rank < needed}
        parted = first_disagreement(needed_logs, room=BUFFER)
        return [parted, *lines] if parted and root.kind in (Kind.HUNG, Kind.RAISED) else lines

    def _stacks(self) -> dict[int, str]:
        """By rank: what it raised, or where it crashed, or where it is."""
        crashed = {rank: _crash(self._launch, rank) for rank in self._launch.links}
        raised = {t.rank: t.stack for t in reversed(self._incidents) if t.rank is not None}
        alive = {rank: doing.stack for rank, doing in self._doing.items()}
        found = [(rank, s) for told in (alive, crashed, raised) for rank, s in told.items() if s]
        return dict(sorted(dict(found).items()))


def ask(launch: Launch, patience: float) -> tuple[dict[int, Doing], list[Event]]:
    """What ranks say in time that they are doing, and what else came meanwhile."""
    asked = {rank for rank in launch.links if launch.send(rank, Probe())}
    for rank in asked:
        launch.links[rank].asked += 1
    answers: dict[int, Doing] = {}
    others: list[Event] = []
    nodes = launch.nodes.ask() if launch.nodes else set()
    until = time.monotonic() + patience
    while (nodes or asked - set(answers)) and (left := until - time.monotonic()) > 0:
        for event in launch.events(left):
            link, message = event.link, event.message
            if link and link.rank is not None and link.asked and isinstance(message, Doing):
                link.asked -= 1
                answers[link.rank] = message
                continue
            others.append(event)
            if link and link.rank is not None and message is None:
                asked.discard(link.rank)
    return answers, others


def told_by_waiting(
    root: Incident, missing: list[int], logs: dict[int, list[Collective]]
) -> Incident:
    """The one rank that all others wait for, where there is such a one."""
    if not missing:
        return replace(root, text=f"all ranks answered in the end, but one {root.text}")
    silent = [rank for rank in missing if rank not in logs]
    elsewhere = [rank for rank in missing if rank in logs and not _pending(logs[rank])]
    awaited = next((ranks[0] for ranks in (silent, elsewhere, missing) if len(ranks) == 1), None)
    if awaited is None:
        return replace(root, text=f"ranks {', '.join(map(str, missing))} {root.text}")
    others = [str(rank) for rank in missing if rank != awaited]
    nor = f", nor did rank {', '.join(others)}" if others else ""
    return replace(root, rank=awaited, text=f"{root.text}{nor}")


def _with_its_end(launch: Launch, root: Incident, rank: int) -> Incident:
    """How a rank died, as soon as its supervisor says it: its socket may be closed before."""
    until = time.monotonic() + PATIENCE
    while (left := until - time.monotonic()) > 0:
        if rank in launch.lost:
            kind = Kind.LAUNCHER if root.kind is Kind.DIED else root.kind
            return replace(root, kind=kind, text=launch.lost[rank], rank=None)
        if rank in launch.ended:
            died = "died while starting" if root.kind is Kind.START else root.text
            return replace(root, text=f"{died}, {launch.ended[rank]}")
        if launch.nodes:
            launch.nodes.ask()
        launch.events(left)
    return root


def _crash(launch: Launch, rank: int) -> str:
    """Where this rank's process was when it crashed, innermost call last.

    The main thread's comes first, then that of the one that crashed if it was another: backward
    on a GPU runs in threads of its own.
    """
    return told_by_crash(launch.read(f"crash.{rank}"))


def told_by_crash(text: str) -> str:
    """What faulthandler wrote, as a stack; the main thread is the last in it."""
    threads = [part for part in text.split("\n\n") if "(most recent call first):\n" in part]
    if not threads:
        return ""
    current = next((each for each in threads if each.startswith("Current")), threads[-1])
    lines = _calls(threads[-1])
    if current is not threads[-1]:
        lines += ["  the thread that crashed", *_calls(current)]
    return "\n".join(lines)


def _calls(thread: str) -> list[str]:
    return thread.rstrip().splitlines()[:0:-1]


def _pending(log: list[Collective]) -> list[Collective]:
    return [entry for entry in log if not entry.done]


def _told(entry: Collective) -> str:
    return str(entry) if entry.done else f"{entry}, not done"


def _doing(raised: Incident | None, log: list[Collective] | None) -> str:
    if raised is not None:
        last = f"; last entered {log[-1]}" if log else ""
        return shorten(raised.text, LINE, placeholder=" …") + last
    if log is None:
        return "gone or not answering"
    pending = _pending(log)
    if not pending:
        return "is in no collective"
    if pending[0].group.startswith(GATE):
        return "waits for the other ranks to leave the previous case"
    return f"{WAITS}{pending[0]}"
