"""What living ranks say when they are asked what they are doing."""

import time
from dataclasses import dataclass

from harness.ranks.collectives import Collective, heard
from harness.ranks.launch import Launch
from harness.ranks.link import Event
from harness.ranks.wire import Frame, encode


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's main thread."""

    stack: str
    # The module whose import it is in, if it is in one.
    importing: str
    collectives: list[Collective]


def ask(launch: Launch, patience: float) -> tuple[dict[int, Report], list[Event]]:
    """The answers that come in time, and what else came meanwhile."""
    asked = {rank for rank in launch.links if launch.send(rank, encode("report"))}
    for rank in asked:
        launch.links[rank].asked += 1
    reports: dict[int, Report] = {}
    others: list[Event] = []
    nodes = launch.nodes.ask() if launch.nodes else set()
    until = time.monotonic() + patience
    while (nodes or asked - set(reports)) and (left := until - time.monotonic()) > 0:
        for event in launch.events(left):
            link, frame = event.link, event.frame
            if link and link.rank is not None and link.asked and frame and frame.kind == "report":
                link.asked -= 1
                reports[link.rank] = _read(frame)
                continue
            others.append(event)
            if link and link.rank is not None and frame is None:
                asked.discard(link.rank)
    return reports, others


def _read(frame: Frame) -> Report:
    try:
        collectives = heard(frame.header.get("collectives", []))
    except (TypeError, ValueError, OverflowError):
        # Who lies about this as well is known well enough without it.
        collectives = []
    stack, importing = frame.header.get("stack", ""), frame.header.get("importing", "")
    return Report(str(stack), str(importing), collectives)
