"""A rank, as its supervisor starts it. No pytest, no hypothesis, no judgement here.

The first thing a rank does is to connect to its controller, before it imports anything heavy, so
that its death can be noticed from then on.
"""

import faulthandler
import importlib
import os
import signal
import sys
import tempfile
import traceback

from harness.ranks.controller_link import Controller
from harness.ranks.descendants import adopt_orphans


def stand_alone() -> None:
    """Forked, it would end with its supervisor's group, and with its handlers of signals."""
    if os.getpgrp() != os.getpid():
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()


def main() -> None:
    index, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    stand_alone()
    controller = Controller(index)
    # Native code that aborts leaves no other word of where it was called from.
    faulthandler.enable((controller.folder / f"crash.{index}").open("w"))

    from harness.ranks.case_loop import Serving

    Serving(controller, index, local).serve()


def run() -> None:
    """Until the controller has no more cases; whatever goes wrong is in the log of the rank."""
    # What was cached of places that another environment named.
    importlib.invalidate_caches()
    tempfile.tempdir = None
    try:
        main()
    except Exception:  # noqa: BLE001 - whoever forked us would keep it to himself
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    run()
