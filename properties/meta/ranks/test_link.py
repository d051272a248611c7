"""What the controller sees of a rank's process before the rank's socket says so."""

import os
import socket
import subprocess
import sys

from harness.ranks.host import Host
from harness.ranks.link import Link
from harness.ranks.messages import Order
from properties.helpers.wait import eventually


def test_a_process_on_its_way_out_is_seen_while_its_socket_is_still_open() -> None:
    here, there = socket.socketpair()
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    with here, there, subprocess.Popen(command) as child:
        link = Link(here, pid=child.pid)
        assert not link.is_ending()
        child.kill()
        assert eventually(link.is_ending)
        child.wait()
        # Gone: whatever it had to say has been said.
        assert not link.is_ending()


def test_of_what_ranks_print_only_the_end_is_read() -> None:
    host = Host(Order(ranks=1, environment={}, launch=""))
    log = host.supervisor.folder / "crash.0"
    with log.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\x1b[31mthe end")
    assert host.read("crash.0") == "�[31mthe end"
    host.kill()
