"""A rank, as its supervisor starts it. No pytest, no hypothesis, no judgement here.

The first thing a rank does is to connect to its controller, before it imports anything heavy, so
that its death can be noticed from then on. A thread of its own reads the socket: it answers
questions while the main thread is stuck in a collective, and when the socket closes the process
ends at once, whatever it was doing.
"""

import faulthandler
import importlib
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.ranks.collectives import Collective, log
from harness.ranks.descendants import ADDRESS, adopt_orphans, kill_below
from harness.ranks.messages import (
    Doing,
    Finished,
    Hello,
    Mesh,
    Message,
    Probe,
    Raised,
    Reader,
    Ready,
    Run,
    ToRank,
    encode,
)
from harness.ranks.threads import being_imported, frames_of_threads, stacks

# Of what a candidate says in one piece.
LONG = 1 << 14

if TYPE_CHECKING:
    from collections.abc import Callable

# Which launch this rank is of.
LAUNCH = "HARNESS_LAUNCH"


class Controller:
    """This rank's end of the socket."""

    def __init__(self, rank: int) -> None:
        self.folder = Path(os.environ[ADDRESS]).parent
        self.inbox: queue.SimpleQueue[Mesh | Run] = queue.SimpleQueue()
        # Nothing to ask before torch.distributed is up.
        self.collectives: Callable[[], list[Collective]] = list
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(os.environ[ADDRESS])
            self.send(Hello(os.environ.pop(LAUNCH), rank, os.getpid()))
        except OSError:
            self.leave()
        threading.Thread(target=self._read, name="controller", daemon=True).start()

    def send(self, message: Message) -> None:
        """Whoever has something to say."""
        frame = encode(message)
        with self._lock:
            self._socket.sendall(frame)

    def _read(self) -> None:
        reader = Reader[ToRank](ToRank)
        try:
            while data := self._socket.recv(1 << 20):
                for message in reader.feed(data):
                    if isinstance(message, Probe):
                        self.send(self.doing())
                    else:
                        self.inbox.put(message)
        finally:
            self.leave()

    def doing(self) -> Doing:
        """What every thread is doing, for a controller that has lost patience."""
        frames = frames_of_threads()
        stack = stacks(frames)
        logged: list[Collective] = []
        try:
            logged = self.collectives()
        except Exception as error:  # noqa: BLE001 - the stack is worth having without the log
            stack.append(f"no log of collectives: {type(error).__name__}: {error}")
        return Doing(
            stack="".join(stack),
            importing=next(filter(None, map(being_imported, frames.values())), ""),
            collectives=logged,
        )

    def leave(self) -> NoReturn:
        """The controller is gone. Nothing may outlive it: no file, and no child of ours."""
        shutil.rmtree(self.folder, ignore_errors=True)
        kill_below([os.getpid()])
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


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

    from torch import distributed as dist

    from harness.candidates import STOOD_IN
    from harness.candidates.beside import require_own
    from harness.case import parse
    from harness.ranks.entered import Entered
    from harness.ranks.exchanges import Exchanges
    from harness.ranks.hardware import allocations, described
    from harness.ranks.mesh import Meshes
    from harness.ranks.payload import pack
    from harness.ranks.placement import settle
    from harness.ranks.recorder import Recorder
    from harness.ranks.warm_up import make_ready
    from harness.ranks.willing import loaded, willing

    device = settle(local)
    meshes, exchanges = Meshes(index, device), Exchanges()
    progress = os.open(controller.folder / f"progress.{index}", os.O_RDWR | os.O_CREAT)
    controller.collectives = log
    make_ready(device)
    controller.send(Ready(described(device)))

    gate, entered = dist.barrier(async_op=True), Entered()
    while True:
        asked = controller.inbox.get()
        if isinstance(asked, Mesh):
            meshes.build(asked.dp, asked.sp)
            continue
        case = parse(asked.case)
        recorder = Recorder(
            index,
            case.tokens,
            traced=asked.traced,
            progress=progress,
            learns=asked.learns,
        )
        before, started, memory = exchanges.sent, time.time_ns(), allocations(device)
        ask = loaded if asked.loads else willing
        try:
            candidate, refusal, limits = ask(
                asked.candidate, asked.folder, case, recorder, asked.oracle
            )
            seat = meshes.seat(case.dp, case.sp)
            gate.wait()
            if candidate:
                candidate.run(case, seat.rank, recorder)
                # What it imports late as well.
                require_own(asked.folder)
            fragments = recorder.fragments()
            # Before the gate, which may ask for memory as well.
            idle = 0 < memory == allocations(device)
            # No rank begins a case before all have left the one before it, so that a collective
            # too many can never meet one of the next case. They have left while this one packs.
            gate = dist.barrier(group=seat.gate, async_op=True)
            pieces, tensors = pack(fragments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the controller judges it
            controller.send(
                Raised(
                    asked.run,
                    time.time_ns(),
                    error=f"{type(error).__name__}: {error}"[:LONG],
                    stack="".join(part[:LONG] for part in traceback.format_exception(error)),
                )
            )
            continue
        sent, forgot = exchanges.since(before, started, case, seat.rank, recorder)
        controller.send(
            Finished(
                asked.run,
                pieces,
                tensors,
                skipped=list(recorder.skipped),
                refusal=refusal,
                limits=limits,
                idle=idle,
                sent=sent,
                forgot=forgot,
                order=entered.told(),
                log=log(started) if recorder.traced else [],
                stood_in=sorted(STOOD_IN),
                unemitted=recorder.unemitted,
            )
        )
        recorder.reached("between cases")


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
