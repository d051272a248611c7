"""One torchrun and the sockets of its ranks; started, watched and killed as a unit."""

import contextlib
import hmac
import os
import re
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import harness
from harness.ranks.collectives import ENVIRONMENT
from harness.ranks.wire import Frame, FrameReader, ProtocolError, encode
from harness.ranks.worker import ADDRESS, DEVICE, TOKEN, TRANSPORT

_STOP = encode("stop")
SEND_TIMEOUT = 5.0
CHUNK = 1 << 20


@dataclass(slots=True)
class Link:
    """The controller's end of one rank's socket."""

    socket: socket.socket
    reader: FrameReader = field(default_factory=FrameReader)
    rank: int | None = None
    pid: int = 0
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a frame, or an end, or bytes that make no sense."""

    link: Link | None
    frame: Frame | None = None
    broken: str = ""

    @property
    def rank(self) -> int | None:
        return self.link.rank if self.link else None


class Launch:
    """`torchrun --standalone` with `size` ranks, each connected back to us."""

    def __init__(self, size: int, *, device: str, transport: str) -> None:
        self.size = size
        self.links: dict[int, Link] = {}
        # The (dp, sp) whose process groups these ranks have.
        self.meshes: set[tuple[int, int]] = set()
        # A private folder: only this user can reach the socket, and the path stays short enough
        # for one (about 100 bytes).
        self.folder = Path(tempfile.mkdtemp(prefix="harness-"))
        self._token = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = self.folder / "controller"
        self._listener.bind(str(address))
        self._listener.listen(size)
        self._selector.register(self._listener, selectors.EVENT_READ)
        source = str(Path(harness.__file__).parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        with (self.folder / "torchrun.log").open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    "--standalone",
                    "--nproc-per-node",
                    str(size),
                    "--max-restarts",
                    "0",
                    "--log-dir",
                    str(self.folder / "logs"),
                    "--redirects",
                    "3",
                    "-m",
                    "harness.ranks.worker",
                ],
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    ADDRESS: str(address),
                    TOKEN: self._token,
                    DEVICE: device,
                    TRANSPORT: transport,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(paths),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Its own session: a Ctrl-C at the terminal is for the controller alone.
                start_new_session=True,
            )
        self._launcher = os.pidfd_open(self.process.pid)
        self._selector.register(self._launcher, selectors.EVENT_READ)

    def events(self, timeout: float) -> list[Event]:
        """What happened within `timeout` seconds, or at once if something already has."""
        found: list[Event] = []
        for key, _ in self._selector.select(max(0.0, timeout)):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                connection.settimeout(SEND_TIMEOUT)
                self._selector.register(connection, selectors.EVENT_READ, Link(connection))
            elif key.fileobj == self._launcher:
                self._selector.unregister(self._launcher)
                found.append(Event(None, broken="torchrun ended"))
            else:
                found += self._receive(key.data)
        return found

    def _receive(self, link: Link) -> list[Event]:
        try:
            data = link.socket.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            return [Event(link, broken="closed")] if link.rank is not None else []
        found = []
        try:
            for frame in link.reader.feed(data):
                if link.rank is None:
                    self._welcome(link, frame)
                else:
                    found.append(Event(link, frame))
        except ProtocolError as error:
            self._drop(link)
            found.append(Event(link, broken=str(error)))
        return found

    def _welcome(self, link: Link, frame: Frame) -> None:
        rank = frame.whole("rank") if frame.kind == "hello" else self.size
        if (
            rank >= self.size
            or rank in self.links
            or not hmac.compare_digest(frame.text("token").encode(), self._token.encode())
        ):
            raise ProtocolError("a stranger knocked: no rank of this pool says that")
        link.rank, link.pid = rank, frame.whole("pid")
        self.links[rank] = link

    def _drop(self, link: Link) -> None:
        self._selector.unregister(link.socket)
        link.socket.close()

    def send(self, rank: int, frame: bytes) -> bool:
        """Whether the rank's socket took it."""
        try:
            self.links[rank].socket.sendall(frame)
        except OSError:
            return False
        return True

    def progress(self, rank: int) -> str:
        """The last key a rank reached, also of a rank that is gone."""
        try:
            text = (self.folder / f"progress.{rank}").read_text(errors="replace")
        except OSError:
            return ""
        return text.rstrip(" \0")

    def log(self, rank: int | None, lines: int = 12) -> str:
        """The end of a rank's output, or of torchrun's own."""
        files = (
            [self.folder / "torchrun.log"]
            if rank is None
            else sorted(self.folder.glob(f"logs/*/attempt_0/{rank}/*.log"))
        )
        text = ""
        for file in files:
            try:
                text += file.read_text(errors="replace")
            except OSError:
                continue
        return "\n".join(text.splitlines()[-lines:])

    def exit_of(self, rank: int, patience: float) -> str:
        """How a dead rank ended, as torchrun, its parent, tells it."""
        pid = self.links[rank].pid
        for link in self.links.values():
            _kill_group(link.pid)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            found = re.search(
                rf"exitcode: (-?\d+)\) local_rank: \d+ \(pid: {pid}\)", self.log(None, 200)
            )
            if found:
                code = int(found[1])
                return (
                    f"killed by {signal.Signals(-code).name}"
                    if code < 0
                    else f"exit status {code}"
                )
            time.sleep(0.02)
        return "without a word"

    def stop(self) -> None:
        """Let healthy ranks leave by themselves, then make sure."""
        for rank in self.links:
            self.send(rank, _STOP)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(3.0)
        self.kill()

    def kill(self) -> None:
        """End every process of this launch and remove its folder."""
        self._listener.close()
        _kill_group(self.process.pid)
        for link in self.links.values():
            # torchrun gives each rank a session of its own; the rank's children are in it.
            _kill_group(link.pid)
            link.socket.close()
        self.process.wait()
        self._selector.close()
        os.close(self._launcher)
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
