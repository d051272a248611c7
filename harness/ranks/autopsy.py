"""What happened to the ranks, asked of the living and read from the dead."""

import time
from dataclasses import replace
from textwrap import shorten

from harness.ranks.collectives import GATE, Collective, first_disagreement
from harness.ranks.launch import Launch
from harness.ranks.reports import ask
from harness.ranks.trouble import Trouble
from harness.trace import WAITS, Fault, Kind

# How long living ranks get to say where they are, and then a supervisor to say how one ended.
# Both together stay within the time that a fault may take after its deadline.
PATIENCE = 2.0
LINE = 120


def autopsy(
    launch: Launch,
    troubles: list[Trouble],
    *,
    keys: list[str],
    needed: int,
    finished: list[int],
) -> Fault:
    """The fault, of which the first trouble is the cause, and what the ranks were doing.

    `keys` are those that ranks had reached when the trouble began.
    """
    root = troubles[0]
    reports, _ = ask(launch, PATIENCE)
    # Other hosts have been asked only now.
    there = range(launch.order.ranks, launch.size)
    keys = [*keys[: launch.order.ranks], *map(launch.progress, there)]
    logs = {rank: report.collectives for rank, report in reports.items()}
    stacks = {rank: report.stack for rank, report in reports.items()}
    stacks |= {rank: stack for rank in launch.links if (stack := _crash(launch, rank))}
    raised = {t.rank: t for t in reversed(troubles) if t.rank is not None and t.stack}
    stacks |= {rank: trouble.stack for rank, trouble in raised.items()}
    concerned = sorted({*range(needed), *([] if root.rank is None else [root.rank])})
    ranks = []
    for rank in concerned:
        if rank in finished and rank in logs:
            ranks.append(f"rank {rank}: finished")
            continue
        doing = _doing(raised.get(rank), logs.get(rank))
        ranks.append(f"rank {rank}: {doing}; last key reached: {keys[rank] or 'none'}")
    disagreement = first_disagreement({rank: logs[rank] for rank in logs if rank < needed})
    if disagreement and root.kind in (Kind.HUNG, Kind.RAISED):
        ranks.insert(0, disagreement)
    if root.kind in (Kind.START, Kind.DIED) and root.rank is not None and not root.late:
        root = _with_its_end(launch, root, root.rank)
    if root.kind is Kind.HUNG:
        root = told_by_waiting(root, [r for r in range(needed) if r not in finished], logs)
    return Fault(
        kind=root.kind,
        summary=root.text if root.rank is None else f"rank {root.rank} {root.text}",
        rank=root.rank,
        last_key="" if root.rank is None else keys[root.rank],
        ranks=tuple(ranks),
        stacks=stacks,
        log=(root.rank is not None and launch.log(root.rank)) or launch.log(None),
        logs=launch.logs(),
        collectives={rank: tuple(map(_told, logs[rank])) for rank in sorted(logs)},
    )


def told_by_waiting(
    root: Trouble, missing: list[int], logs: dict[int, list[Collective]]
) -> Trouble:
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


def _with_its_end(launch: Launch, root: Trouble, rank: int) -> Trouble:
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

    Of the main thread, and behind it of the one that crashed if that was another: backward on a
    GPU runs in threads of its own.
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


def _doing(raised: Trouble | None, log: list[Collective] | None) -> str:
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
