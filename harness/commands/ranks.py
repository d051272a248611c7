"""The ranks that a command was asked for. Nothing heavy is imported before they are needed."""

import argparse
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.campaign.lot import WHOLE, Part
from harness.commands.options import UsageError

if TYPE_CHECKING:
    from harness.ranks.pool import RankPool


class NoRanks(RuntimeError):
    """A command that can say nothing without ranks has none; the text explains it."""

    def __init__(self, text: str, summary: str) -> None:
        super().__init__(text)
        self.summary = summary


def _refuse_pretence(options: argparse.Namespace) -> None:
    from harness.ranks.placement import PRETEND, REAL, no_pretence

    for option in ("wrapper", "kernel"):
        for word in getattr(options, option, "").split(","):
            if options.device == PRETEND and word in REAL[option]:
                raise UsageError(f"--{no_pretence(option, word)}")


@contextmanager
def open_pool(
    options: argparse.Namespace,
    ranks: int,
    candidates: Collection[str] = (),
    worker: Part = WHOLE,
) -> Iterator["RankPool"]:
    """As many ranks, on the device and with the patience that was asked for, to run these.

    Where several pools run at once, each has its part of the devices.
    """
    from harness.candidates import interpreter, locate
    from harness.ranks.device import NoPlace, choose
    from harness.ranks.nodes import CannotListen, Nodes
    from harness.ranks.pool import CannotStart, RankPool
    from harness.report import explain_no_start

    if not 0 < options.deadline < 1e6:
        raise UsageError(f"--deadline={options.deadline:g}: use a number of seconds above zero")
    if options.nodes < 1 or (options.nodes > 1) is (options.endpoint is None):
        raise UsageError(
            f"--nodes={options.nodes}: use at least 2, together with --endpoint HOST:PORT, or "
            "leave both out"
        )
    if ranks % options.nodes:
        raise UsageError(f"--ranks={ranks}: use a multiple of --nodes={options.nodes}")
    _refuse_pretence(options)
    homes = {each.home for each in map(locate, candidates)} - {""}
    if len(homes) > 1:
        raise UsageError(
            f"--candidate={','.join(candidates)}: {' and '.join(sorted(homes))} each need an "
            "environment of their own; ask for one at a time"
        )
    where = homes.pop() if homes else ""
    interpreter(where)
    try:
        here, number = ranks // options.nodes, worker.number - 1
        placement = choose(
            options.device, options.transport, here, worker=number, workers=worker.of
        )
        nodes = Nodes(options.nodes, options.endpoint) if options.nodes > 1 else None
    except NoPlace as error:
        raise UsageError(f"--{error}") from None
    except CannotListen as error:
        raise UsageError(f"--endpoint={error}") from None
    if nodes:
        print(f"harness: run on every other host\n  {nodes.command}", file=sys.stderr)  # noqa: T201
    try:
        with RankPool(
            ranks,
            placement,
            home=where,
            nodes=nodes,
            deadline=options.deadline,
        ) as pool:
            for candidate in candidates:
                pool.load(candidate)
            yield pool
    except CannotStart as error:
        raise NoRanks(explain_no_start(error.fault), error.fault.summary) from None
