"""A rank: `torchrun ... -m harness.ranks.worker`. No pytest, no hypothesis, no judgement here.

The first thing a rank does is to connect to its controller, before it imports anything heavy, so
that its death can be noticed from then on. A thread of its own reads the socket: it answers
questions while the main thread is stuck in a collective, and when the socket closes the process
ends at once, whatever it was doing.
"""

import os
import queue
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from harness.ranks.wire import Frame, FrameReader, encode

ADDRESS, TOKEN, DEVICE, TRANSPORT = (
    "HARNESS_SOCKET",
    "HARNESS_TOKEN",
    "HARNESS_DEVICE",
    "HARNESS_TRANSPORT",
)


class Controller:
    """This rank's end of the socket."""

    def __init__(self, rank: int) -> None:
        self.folder = Path(os.environ[ADDRESS]).parent
        self.inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.environ[ADDRESS])
        self.send(encode("hello", token=os.environ.pop(TOKEN), rank=rank, pid=os.getpid()))
        threading.Thread(target=self._read, name="controller", daemon=True).start()

    def send(self, frame: bytes) -> None:
        with self._lock:
            self._socket.sendall(frame)

    def _read(self) -> None:
        reader = FrameReader()
        try:
            while data := self._socket.recv(1 << 20):
                for frame in reader.feed(data):
                    if frame.kind == "report":
                        self.send(encode("report", **report()))
                    elif frame.kind == "stop":
                        os._exit(0)
                    else:
                        self.inbox.put(frame)
        finally:
            # Nothing outlives the controller, and nobody else is left to tidy up after it.
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(1)


def report() -> dict[str, Any]:
    """What the main thread is doing, for a controller that has lost patience."""
    frames = sys._current_frames()  # noqa: SLF001 - documented, for debuggers
    frame = frames.get(threading.main_thread().ident or 0)
    stack = "".join(traceback.format_stack(frame)[-12:])
    logged: list[list[object]] = []
    if "torch.distributed" in sys.modules:
        from harness.ranks.collectives import log

        logged = [[e.group, e.sequence, e.kind, e.shape, e.done] for e in log()]
    return {"stack": stack, "collectives": logged}


def main() -> None:
    index, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    # torchrun ends all ranks when one dies; they stay long enough to say where they were.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    controller = Controller(index)

    import torch
    from torch import distributed as dist

    from harness.candidates import load
    from harness.case import parse
    from harness.ranks.collectives import counts_since
    from harness.ranks.mesh import Meshes
    from harness.ranks.payload import pack
    from harness.ranks.recorder import Recorder

    device = torch.device(os.environ[DEVICE])
    if device.type == "cpu":
        torch.set_num_threads(1)
    else:
        device = torch.device(device.type, local % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(os.environ[TRANSPORT])
    meshes = Meshes(index, device)
    progress = os.open(controller.folder / f"progress.{index}", os.O_RDWR | os.O_CREAT)
    controller.send(encode("ready", device=str(device), torch=torch.__version__))

    while True:
        frame = controller.inbox.get()
        if frame.kind == "mesh":
            meshes.build(frame.whole("dp"), frame.whole("sp"))
            continue
        run, case = frame.whole("run"), parse(frame.text("case"))
        recorder = Recorder(
            index, case.tokens, traced=bool(frame.header["traced"]), progress=progress
        )
        started = time.time_ns()
        try:
            candidate = load(frame.text("candidate"))
            seat = meshes.seat(case.dp, case.sp)
            # No rank begins a case before all have left the one before it, so that a collective
            # too many can never meet one of the next case.
            dist.barrier(group=seat.gate)
            candidate.run(case, seat.rank, recorder)
            described, payload = pack(recorder.fragments)
        except Exception as error:  # noqa: BLE001 - the controller judges it
            controller.send(
                encode(
                    "raised",
                    run=run,
                    moment=time.monotonic(),
                    error=f"{type(error).__name__}: {error}",
                    stack=traceback.format_exc(),
                    last_key=recorder.last_key,
                )
            )
            continue
        # One rank's log stands for all: collectives come in step or not at all.
        collectives = counts_since(started) if index == 0 else {}
        controller.send(
            encode("finished", payload, run=run, fragments=described, collectives=collectives)
        )


if __name__ == "__main__":
    main()
