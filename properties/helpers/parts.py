"""Parts of a campaign that are judged by nobody, side by side: a program for tests.

Run as `python -m properties.helpers.parts WHAT PARTS`, in a folder of its own. Every part that
comes so far leaves the number of its process there.
"""

import argparse
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.campaign.request import Part, Request
from harness.campaign.summary import INTERRUPTED, Summary
from harness.campaign.tally import Histogram, Tally
from harness.cli import obey_signals
from harness.commands.ranks import NoRanks
from harness.commands.side_by_side import side_by_side
from harness.outside import BadInput

if TYPE_CHECKING:
    from rich.console import Console

REQUEST = Request(
    candidates=("a",),
    sps=(2,),
    dps=(1,),
    dtypes=("fp64",),
    losses=("token-mean",),
    count=8,
    seed=0,
)


def judge(
    what: argparse.Namespace, request: Request, ranks: int, part: Part, console: "Console"
) -> Summary:
    """One case that passed, or what was asked for."""
    console.print(f"part {part}")
    summary = Summary(
        request=request,
        ranks=ranks,
        versions={"harness": "1"},
        size=part.of,
        drawn="0123",
        of=part.of,
        shards=(part.number,),
        tallies={"a": Tally(Counter(EQUAL=1), used={"fp64": Histogram([1, 0, 0, 0, 0, 0, 0])})},
        situations=Counter({"a situation": 1}),
        cases=1,
        seconds=100.0,
    )
    if what.does == "refuses":
        raise BadInput("no such thing")
    if what.does == "has no ranks":
        raise NoRanks("harness: they do not come up", "they do not")
    if what.does == "breaks":
        raise ZeroDivisionError
    if what.does == "vanishes":
        os._exit(1)
    try:
        Path(f"part-{part.number}").write_text(str(os.getpid()))
        while what.does == "goes on":
            signal.pause()
    except KeyboardInterrupt:
        summary.ended = INTERRUPTED
    return summary


def main(does: str, parts: str) -> Any:
    what = argparse.Namespace(does=does, json=True)
    try:
        return side_by_side(what, REQUEST, 2, int(parts), judge).record()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    except Exception as error:  # noqa: BLE001 - tests look at it
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    obey_signals()
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201 - the answer
