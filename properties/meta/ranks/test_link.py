"""What the controller sees of a rank's process before the rank's socket says so."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from harness.ranks.link import Link
from harness.ranks.torchrun import Order, Torchrun

PATIENCE = 5.0


def test_a_process_on_its_way_out_is_seen_while_its_socket_is_still_open() -> None:
    here, there = socket.socketpair()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with here, there, subprocess.Popen(command) as child:
        link = Link(here, pid=child.pid)
        assert not link.is_ending()
        child.kill()
        until = time.monotonic() + PATIENCE
        while not link.is_ending() and time.monotonic() < until:
            time.sleep(0.01)
        assert link.is_ending()
        child.wait()
        # Gone: whatever it had to say has been said.
        assert not link.is_ending()


def test_of_what_ranks_print_only_the_end_is_read() -> None:
    torchrun = Torchrun(Order(ranks=1, environment={}, token=""))
    log = Path(torchrun.address).with_name("torchrun.0")
    with log.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\x1b[31mthe end")
    assert torchrun.read("torchrun.0") == "�[31mthe end"
    log.unlink()
    log.parent.rmdir()
