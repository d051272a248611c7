"""The program of a rank. It imports no pytest, no hypothesis and no code that judges.

A rank connects to its controller before it imports anything heavy, so that its death is noticed
from then on.
"""

import faulthandler
import importlib
import os
import signal
import sys
import tempfile
import traceback

from harness.processes.descendants import adopt_orphans
from harness.rank_program.controller_link import Controller


def main() -> None:
    index, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if os.getpgrp() != os.getpid():
        # A fork inherits the process group and the signal handlers of its supervisor.
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    controller = Controller(index)
    # Native code that aborts leaves no other trace of where it was called.
    faulthandler.enable((controller.folder / f"crash.{index}").open("w"))

    from harness.rank_program.case_loop import CaseLoop

    CaseLoop(controller, index, local).serve()


def run() -> None:
    """Run cases until the controller closes the socket; print any exception to the rank's log."""
    # A fork inherits caches that belong to the supervisor's environment.
    importlib.invalidate_caches()
    tempfile.tempdir = None
    try:
        main()
    except Exception:  # noqa: BLE001 - the code that forked this process would not print it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    run()
