"""How a torchrun on its leash begins: started, or forked off a zygote from the second time on."""

import atexit
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from harness.ranks import leash, zygote
from harness.ranks.leash import ADDRESS, sweep
from harness.ranks.zygote import BEGAN, NOWHERE

# Until a zygote is ready, and until a launch of its that has ended is told of.
IMPORTING, PATIENCE = 60.0, 5.0
# An exit status that nobody could tell.
UNKNOWN = 256
# pytest says there what it is at; it is another for every launch.
PASSING = "PYTEST_CURRENT_TEST"

Process = subprocess.Popen[bytes]


class Forked:
    """A launch that a zygote has forked; to be used like one that was started."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._told = channel.makefile("r")
        self.returncode: int | None = None
        began, _, pid = self._told.readline().partition(" ")
        if began != BEGAN:
            raise OSError("nothing was forked")
        self.pid = int(pid)
        channel.settimeout(PATIENCE)

    def wait(self) -> int:
        """How it ended; from then on its number may be another's."""
        if self.returncode is None:
            self.returncode = UNKNOWN
            # Of a zygote that is gone nobody hears any more.
            with contextlib.suppress(OSError, ValueError):
                self.returncode = int(self._told.readline())
                self._channel.shutdown(socket.SHUT_WR)
                # Nothing more, once its number is free.
                self._told.read()
            self._told.close()
            self._channel.close()
        return self.returncode


class Zygote:
    """The controller's end."""

    def __init__(self, python: str, environment: dict[str, str]) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [python, "-m", zygote.__name__],
                # Its own files outlive those of the launch that it was started for.
                env=environment | {ADDRESS: NOWHERE, "TMPDIR": tempfile.gettempdir()},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._owner = os.getpid()
        atexit.register(self._end)

    def fork(self, words: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> Forked:
        """A launch by these words of torchrun's; `OSError` if there is none."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._orders, [b"."], [theirs.fileno(), output.fileno()])
            ours.settimeout(IMPORTING)
            order = {"words": words, "environment": environment, "folder": str(Path.cwd())}
            ours.sendall(json.dumps(order).encode() + b"\n")
            return Forked(ours)
        except BaseException:
            ours.close()
            # It forks no more, and what it has forked is of no use.
            self._end()
            sweep(environment[ADDRESS])
            raise

    def retire(self) -> None:
        """It goes after the last of its launches."""
        self._orders.close()

    def _end(self) -> None:
        self._orders.close()
        # A fork of its owner has none.
        if os.getpid() == self._owner:
            self._process.kill()
            self._process.wait()


_LOCK = threading.Lock()
# Of each process, for whoever forks has none, and of each interpreter: in which environment it
# launched last, and who forks launches in it from the second on.
_LAST: dict[tuple[int, str], tuple[dict[str, str], Zygote | None]] = {}


def forked_if_again(
    python: str, words: Sequence[str], environment: dict[str, str], output: IO[bytes]
) -> Process | Forked:
    """A torchrun on its leash: started the first time, and then forked."""
    now = {name: value for name, value in os.environ.items() if name != PASSING}
    with _LOCK:
        who = os.getpid(), python
        before, there = _LAST.get(who, ({}, None))
        if before == now:
            with contextlib.suppress(OSError):
                there = there or Zygote(python, environment)
                # One that cannot fork is gone by then, and says so at once the next time.
                _LAST[who] = now, there
                return there.fork(words, environment, output)
        else:
            if there:
                there.retire()
            _LAST[who] = now, None
    return started(python, words, environment, output)


def started(
    python: str, words: Sequence[str], environment: dict[str, str], output: IO[bytes]
) -> Process:
    """The same as a program of its own."""
    return subprocess.Popen(
        [python, "-m", leash.__name__, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Its own session: a Ctrl-C at the terminal is for the controller alone.
        start_new_session=True,
    )
