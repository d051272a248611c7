"""A campaign whose lots are judged by fake examiners in several processes, for tests.

Run as `python -m properties.helpers.parts BEHAVIOUR POOLS`, in a folder of its own; each pool gets
one lot. Each examiner that starts to judge writes its process id into a file there.
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

from harness.campaign.conduct import Campaign, LotJob
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
    # The stand-in judges no case, so none has an sp that was asked for.
    rare_sps=(4,),
)


class FakeExaminer:
    """Reports one passed case for each lot without running ranks, or misbehaves as requested."""

    def __init__(self, behaviour: str, worker: Part) -> None:
        self._behaviour, self._worker = behaviour, worker

    def examine(self, share: LotJob) -> dict[str, Any]:
        lot, requests = share
        assert [ask.candidate for ask in requests] == [*REQUEST.candidates]
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
        if self._behaviour == "vanishes":
            os._exit(1)
        if self._behaviour == "vanishes once" and not _was_begun(lot):
            os._exit(1)
        try:
            Path(f"part-{self._worker.number}").write_text(str(os.getpid()))
            while self._behaviour == "goes on":
                signal.pause()
        except KeyboardInterrupt:
            summary.ended = INTERRUPTED
        return summary.record()


def _was_begun(lot: Lot) -> bool:
    """Whether this lot was begun before; record that it is begun now."""
    try:
        Path(f"lot {lot.piece.number}").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


@contextmanager
def open_fake(behaviour: str, worker: Part) -> Iterator[Callable[[LotJob], dict[str, Any]]]:
    sys.stderr.write(f"part {worker}\n")
    if behaviour == "refuses":
        raise BadInput("no such thing")
    if behaviour == "has no ranks":
        raise NoRanks("harness: they do not come up", "they do not")
    if behaviour == "breaks":
        raise ZeroDivisionError
    yield FakeExaminer(behaviour, worker).examine


def main(behaviour: str, pools: str) -> Any:
    count = int(pools)
    request, lots = replace(REQUEST, count=count), WHOLE.lots(count, count)
    try:
        with Processes[LotJob, Summary](open_fake, (behaviour,), count, read_work) as engine:
            return Campaign(request, lots, lambda *_: None).run(engine, {}).record()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    except Exception as error:  # noqa: BLE001 - tests read it
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    obey_signals()
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201 - tests read it
