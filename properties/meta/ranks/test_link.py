"""What the controller sees of a rank's process before the rank's socket says so."""

import socket
import subprocess
import sys
import time

from harness.ranks.link import Link

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
