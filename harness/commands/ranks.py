"""The ranks that a command was asked for. Nothing heavy is imported before they are needed."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.commands.options import Device, Step
from harness.commands.values import UsageError
from harness.engine.lot import WHOLE, Part
from harness.engine.no_ranks import NoRanks

if TYPE_CHECKING:
    from harness.ranks.pool import RankPool


def _refuse_pretence(options: Device) -> None:
    from harness.ranks.placement import PRETEND, REAL, no_pretence

    if options.device != PRETEND or not isinstance(options, Step):
        return
    for option, words in (("wrapper", options.wrapper), ("kernel", options.kernel)):
        for word in words:
            if word in REAL[option]:
                raise UsageError(f"--{no_pretence(option, word)}")


@contextmanager
def open_pool(
    options: Device,
    ranks: int,
    candidates: Collection[str] = (),
    worker: Part = WHOLE,
) -> Iterator["RankPool"]:
    """As many ranks, on the device and with the patience that was asked for, to run these.

    Where several pools run at once, each has its part of the devices.
    """
    from harness.candidates import interpreter, locate
    from harness.ranks.device import NoPlace, choose
    from harness.ranks.other_hosts import other_hosts_here
    from harness.ranks.pool import CannotStart, RankPool
    from harness.report import explain_no_start

    _refuse_pretence(options)
    named = [locate(name) for name in candidates]
    homes = {each.home for each in named} - {""}
    if len(homes) > 1:
        raise UsageError(
            f"--candidate={','.join(candidates)}: {' and '.join(sorted(homes))} each need an "
            "environment of their own; ask for one at a time"
        )
    where = homes.pop() if homes else ""
    interpreter(where)
    nodes = other_hosts_here()
    try:
        placement = choose(
            options.device,
            options.transport,
            ranks // (nodes.count if nodes else 1),
            worker=worker.number - 1,
            workers=worker.of,
        )
    except NoPlace as error:
        raise UsageError(f"--{error}") from None
    try:
        with RankPool(
            ranks,
            placement,
            home=where,
            nodes=nodes,
            deadline=options.deadline,
        ) as pool:
            for candidate in named:
                pool.load(candidate)
            yield pool
    except CannotStart as error:
        raise NoRanks(explain_no_start(error.fault), error.fault.summary) from None
