"""Turn what went wrong into a fault, in five steps.

1. Notice: a process ended, sent an unexpected message, or sent nothing for too long.
2. Gather: wait a moment for incidents that come with the first one, and put the cause first.
3. Ask: living ranks report what they are doing; of dead ones, read the files that they left.
4. Blame: find the rank that is the cause, and how it ended.
5. Report: build the `Fault`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten

from harness.processes.process_exit import KILLED
from harness.rank_program.threads import crash_stack
from harness.ranks.launch import Launch
from harness.trace import WAITS, Fault, Kind
from harness.watch.collectives import GATE, Collective, first_disagreement
from harness.watch.flight_recorder import BUFFER
from harness.wire.link import Event
from harness.wire.messages import Activity, Probe

# Seconds. One rank's incident soon causes others: wait for those before naming the first.
GRACE, LONGEST_GRACE, POLL = 0.3, 2.0, 0.02
# Seconds for living ranks to report, and then for a supervisor to report how one ended. Twice this
# is still within the time that a fault may take after its deadline.
PATIENCE = 2.0
LINE = 120
# From cause to consequence: a rank's death explains the end of its supervisor, both explain the
# exceptions of peers, and all of them explain that a rank waits; never the reverse.
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
    """One observation of something that went wrong, as yet without its cause."""

    kind: Kind
    text: str
    rank: int | None = None
    # The run that the rank itself reported.
    run: int | None = None
    moment: int = 0
    # Whether a deadline passed without any event.
    is_late: bool = False
    stack: str = ""


class FaultReport:
    """One fault, from its first incidents to the finished `Fault`."""

    def __init__(self, launch: Launch, incidents: Sequence[Incident]) -> None:
        self._launch, self._incidents = launch, [*incidents]
        # The last key that each rank reached, read before anything else happens.
        self._keys = [launch.progress(rank) for rank in range(launch.size)]
        self._activities: dict[int, Activity] = {}

    @property
    def root(self) -> Incident:
        """The cause, as far as it is known."""
        return self._incidents[0]

    def gather(self, more: Callable[[float], list[Incident]]) -> None:
        """Add the incidents that follow; `more` waits for them at most so many seconds."""
        started = time.monotonic()
        while (passed := time.monotonic() - started) < self._grace():
            self._incidents += more(max(GRACE - passed, POLL))
        self._incidents.sort(key=self._blame_order)

    def _blame_order(self, incident: Incident) -> tuple[int, bool, int]:
        """Return the sort key that puts causes before their consequences.

        A rank that was killed comes before one that exited. The second may have exited because it
        lost the first, and a process whose memory is dumped takes longer to end.
        """
        end = "" if incident.rank is None else self._launch.ended.get(incident.rank, "")
        return BLAME.index(incident.kind), not end.startswith(KILLED), incident.moment

    def _grace(self) -> float:
        # An exiting process may close the sockets of its peers long before the controller's.
        is_any_ending = any(link.is_ending() for link in self._launch.links.values())
        return LONGEST_GRACE if is_any_ending or self._awaits_a_cause() else GRACE

    def _awaits_a_cause(self) -> bool:
        """Return whether a rank exited while starting, perhaps because another is being killed.

        A rank that has not connected yet cannot be seen to be ending.
        """
        root, ended = self.root, self._launch.ended
        if (
            root.kind is not Kind.START
            or root.rank not in ended
            or len(ended) == self._launch.size
        ):
            return False
        return not any(end.startswith(KILLED) for end in ended.values())

    def fault(self, needed: int, finished: Sequence[int]) -> Fault:
        """Build the fault of a case on `needed` ranks, of which some have finished it."""
        launch = self._launch
        self._activities, _ = probe_ranks(launch, PATIENCE)
        # Other hosts have reported the progress of their ranks only now.
        on_other_hosts = range(launch.order.ranks, launch.size)
        self._keys[launch.order.ranks :] = map(launch.progress, on_other_hosts)
        logs = {rank: activity.collectives for rank, activity in self._activities.items()}
        root = self._blame([rank for rank in range(needed) if rank not in finished], logs)
        return Fault(
            kind=root.kind,
            summary=root.text if root.rank is None else f"rank {root.rank} {root.text}",
            rank=root.rank,
            last_key="" if root.rank is None else self._keys[root.rank],
            ranks=tuple(self._lines(needed, finished, logs)),
            stacks=self._stacks(),
            log=(root.rank is not None and launch.log(root.rank)) or launch.log(None),
            logs=launch.logs(),
            collectives={rank: tuple(map(_describe, logs[rank])) for rank in sorted(logs)},
        )

    def _blame(self, missing: list[int], logs: dict[int, list[Collective]]) -> Incident:
        root = self.root
        if root.kind is Kind.HUNG:
            return blame_awaited_rank(root, missing, logs)
        if root.kind in (Kind.START, Kind.DIED) and root.rank is not None and not root.is_late:
            return _add_end(self._launch, root, root.rank)
        return root

    def _lines(
        self, needed: int, finished: Sequence[int], logs: dict[int, list[Collective]]
    ) -> list[str]:
        """Describe what each rank of the case was doing, after where their collectives part."""
        lines, root = [], self.root
        raised = {t.rank: t for t in reversed(self._incidents) if t.stack}
        for rank in sorted({*range(needed), *([] if root.rank is None else [root.rank])}):
            if rank in finished and rank in logs:
                lines.append(f"rank {rank}: finished")
                continue
            activity = _describe_activity(raised.get(rank), logs.get(rank))
            last = self._keys[rank] or "none"
            lines.append(f"rank {rank}: {activity}; last key reached: {last}")
        needed_logs = {rank: logs[rank] for rank in logs if rank < needed}
        parted = first_disagreement(needed_logs, room=BUFFER)
        return [parted, *lines] if parted and root.kind in (Kind.HUNG, Kind.RAISED) else lines

    def _stacks(self) -> dict[int, str]:
        """Return, by rank, the stack that it raised with, or crashed with, or is in."""
        alive = {rank: activity.stack for rank, activity in self._activities.items()}
        crashed = {
            rank: crash_stack(self._launch.read(f"crash.{rank}")) for rank in self._launch.links
        }
        raised = {t.rank: t.stack for t in reversed(self._incidents) if t.rank is not None}
        found = [(r, stack) for by in (alive, crashed, raised) for r, stack in by.items() if stack]
        return dict(sorted(dict(found).items()))


def probe_ranks(launch: Launch, patience: float) -> tuple[dict[int, Activity], list[Event]]:
    """Ask every rank what it is doing; return the answers that come in time, and other events."""
    probed = {rank for rank in launch.links if launch.send(rank, Probe())}
    for rank in probed:
        launch.links[rank].probes += 1
    answers: dict[int, Activity] = {}
    others: list[Event] = []
    nodes = launch.nodes.request_reports() if launch.nodes else set()
    until = time.monotonic() + patience
    while (nodes or probed - set(answers)) and (left := until - time.monotonic()) > 0:
        for event in launch.events(left):
            link, message = event.link, event.message
            if link and link.rank is not None and link.probes and isinstance(message, Activity):
                link.probes -= 1
                answers[link.rank] = message
                continue
            others.append(event)
            if link and link.rank is not None and message is None:
                probed.discard(link.rank)
    return answers, others


def blame_awaited_rank(
    root: Incident, missing: list[int], logs: dict[int, list[Collective]]
) -> Incident:
    """Blame the one rank for which all others wait, if there is exactly one."""
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


def _add_end(launch: Launch, root: Incident, rank: int) -> Incident:
    """Wait until the supervisor reports how a rank ended: its socket may have closed before."""
    until = time.monotonic() + PATIENCE
    while (left := until - time.monotonic()) > 0:
        if rank in launch.lost:
            kind = Kind.LAUNCHER if root.kind is Kind.DIED else root.kind
            return replace(root, kind=kind, text=launch.lost[rank], rank=None)
        if rank in launch.ended:
            died = "died while starting" if root.kind is Kind.START else root.text
            return replace(root, text=f"{died}, {launch.ended[rank]}")
        if launch.nodes:
            launch.nodes.request_reports()
        launch.events(left)
    return root


def _pending(log: list[Collective]) -> list[Collective]:
    return [entry for entry in log if not entry.done]


def _describe(entry: Collective) -> str:
    return str(entry) if entry.done else f"{entry}, not done"


def _describe_activity(raised: Incident | None, log: list[Collective] | None) -> str:
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
