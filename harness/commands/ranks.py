"""Open the pool of ranks that the options of a command ask for."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.against import PLAIN, names_recipe
from harness.commands.options import Device, Reference, Step
from harness.commands.values import UsageError
from harness.engine.lot import WHOLE, Part
from harness.engine.no_ranks import NoRanks

if TYPE_CHECKING:
    from harness.ranks.pool import RankPool


def _refuse_pretence(options: Device) -> None:
    """Raise `UsageError` if a pretended GPU is to run what only a real one can."""
    from harness.rank_program.placement import NEEDS_REAL_GPU, PRETEND, needs_real_gpu

    if options.device != PRETEND or not isinstance(options, Step):
        return
    for option, words in (("wrapper", options.wrapper), ("kernel", options.kernel)):
        for word in words:
            if word in NEEDS_REAL_GPU[option]:
                raise UsageError(f"--{needs_real_gpu(option, word)}")


@contextmanager
def open_pool(
    options: Device,
    ranks: int,
    candidates: Collection[str] = (),
    worker: Part = WHOLE,
) -> Iterator["RankPool"]:
    """Open a pool of so many ranks, on the device of the options, that loads these candidates.

    It also loads the recipe that they are compared with, if the options name one.

    `worker` says which of several pools on this host it is: each gets its part of the devices.
    Raise `NoRanks` if the ranks cannot start.
    """
    from harness.candidates import interpreter, locate
    from harness.candidates.registry import locate_recipe
    from harness.ranks.device import ImpossiblePlacement, choose_placement
    from harness.ranks.pool import CannotStart, RankPool
    from harness.report import explain_no_start
    from harness.worlds.other_hosts import connect_other_hosts

    _refuse_pretence(options)
    named = [locate(name) for name in candidates]
    against = (isinstance(options, Reference) and options.against) or PLAIN
    recipes = [locate_recipe(against)] if names_recipe(against) else []
    homes = {candidate.home for candidate in named} - {""}
    if len(homes) > 1:
        raise UsageError(
            f"--candidate={','.join(candidates)}: {' and '.join(sorted(homes))} each need an "
            "environment of their own; ask for one at a time"
        )
    home = homes.pop() if homes else ""
    interpreter(home)
    nodes = connect_other_hosts()
    try:
        placement = choose_placement(
            options.device,
            options.transport,
            ranks // (nodes.count if nodes else 1),
            worker=worker.number - 1,
            workers=worker.of,
        )
    except ImpossiblePlacement as error:
        raise UsageError(f"--{error}") from None
    try:
        with RankPool(
            ranks,
            placement,
            home=home,
            nodes=nodes,
            deadline=options.deadline,
        ) as pool:
            for code in (*named, *recipes):
                pool.load(code)
            yield pool
    except CannotStart as error:
        raise NoRanks(explain_no_start(error.fault), error.fault.summary) from None
