"""Lots of a campaign that are judged by nobody, side by side: a program for tests.

Run as `python -m properties.helpers.parts WHAT POOLS`, in a folder of its own; each pool has one
lot. Everyone who comes so far leaves the number of its process there.
"""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.campaign.conduct import Campaign, Share
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, Summary
from harness.campaign.tally import Histogram, Tally
from harness.cli import obey_signals
from harness.commands.examiner import read_work
from harness.engine.lot import WHOLE, Lot, Part
from harness.engine.no_ranks import NoRanks
from harness.engine.processes import Processes
from harness.untrusted import BadInput

REQUEST = Request(
    candidates=("a",),
    sps=(2,),
    dps=(1,),
    dtypes=("fp64",),
    losses=("token-mean",),
    count=8,
    seed=0,
)


class Nobody:
    """Instead of ranks: one case that passed for each lot, or what was asked for."""

    def __init__(self, does: str, worker: Part) -> None:
        self._does, self._worker = does, worker

    def examine(self, share: Share) -> dict[str, Any]:
        lot, asked = share
        assert [ask.candidate for ask in asked] == [*REQUEST.candidates]
        summary = Summary(
            request=REQUEST,
            ranks=2,
            versions={"harness": "1"},
            size=len(lot),
            of=1,
            shards=(1,),
            tallies={"a": Tally(Counter(EQUAL=1), used={"fp64": Histogram([1, *[0] * 6])})},
            situations=Counter({"a situation": 1}),
            cases=1,
        )
        if self._does == "vanishes" or (self._does == "vanishes once" and not _was_here(lot)):
            os._exit(1)
        try:
            Path(f"part-{self._worker.number}").write_text(str(os.getpid()))
            while self._does == "goes on":
                signal.pause()
        except KeyboardInterrupt:
            summary.ended = INTERRUPTED
        return summary.record()


def _was_here(lot: Lot) -> bool:
    try:
        Path(f"lot {lot.piece.number}").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


@contextmanager
def opens(does: str, worker: Part) -> Iterator[Callable[[Share], dict[str, Any]]]:
    sys.stderr.write(f"part {worker}\n")
    if does == "refuses":
        raise BadInput("no such thing")
    if does == "has no ranks":
        raise NoRanks("harness: they do not come up", "they do not")
    if does == "breaks":
        raise ZeroDivisionError
    yield Nobody(does, worker).examine


def main(does: str, pools: str) -> Any:
    count = int(pools)
    request, lots = replace(REQUEST, count=count), WHOLE.lots(count, count)
    try:
        with Processes[Share, Summary](opens, (does,), count, read_work) as places:
            return Campaign(request, lots, lambda *_: None).run(places, {}).record()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    except Exception as error:  # noqa: BLE001 - tests look at it
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    obey_signals()
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201 - the answer
