"""The controller can observe a rank without its socket."""

import os
import socket
import subprocess
import sys

from harness.rank_program.placement import Placement
from harness.supervision.host import Host
from harness.wire.link import Link
from harness.wire.messages import Order
from properties.helpers.wait import eventually


def test_a_process_that_is_exiting_is_noticed_while_its_socket_is_still_open() -> None:
    controller_end, rank_end = socket.socketpair()
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    with controller_end, rank_end, subprocess.Popen(command) as child:
        link = Link(controller_end, pid=child.pid)
        assert not link.is_ending()
        child.kill()
        assert eventually(link.is_ending)
        child.wait()
        # It has ended, and closes nothing more.
        assert not link.is_ending()


def test_only_the_end_of_a_huge_file_is_read_and_it_is_made_printable() -> None:
    host = Host(Order(ranks=1, environment=Placement().environment(), launch=""))
    log = host.supervisor.folder / "crash.0"
    with log.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\x1b[31mthe end")
    assert host.read("crash.0") == "�[31mthe end"
    host.kill()
