"""One torchrun and the sockets of its ranks; started, watched and killed as a unit."""

import contextlib
import hmac
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from harness.ranks.collectives import ENVIRONMENT
from harness.ranks.leash import ADDRESS, CONTROLLER, sweep
from harness.ranks.link import Event, Link
from harness.ranks.wire import Frame, ProtocolError, encode
from harness.ranks.worker import DEVICE, TOKEN, TRANSPORT

_STOP = encode("stop")
SEND_TIMEOUT = 5.0
CHUNK = 1 << 20


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
        self._address = str(self.folder / "controller")
        self._listener.bind(self._address)
        self._listener.listen(size)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            self.process = self._torchrun(device, transport)
        except BaseException:
            self._listener.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._launcher = os.pidfd_open(self.process.pid)
        self._selector.register(self._launcher, selectors.EVENT_READ)

    def _torchrun(self, device: str, transport: str) -> subprocess.Popen[bytes]:
        source = str(Path(harness.__file__).parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        options = ["--standalone", "--nproc-per-node", str(self.size), "--max-restarts", "0"]
        logs = ["--log-dir", str(self.folder / "logs"), "--redirects", "3"]
        with (self.folder / "torchrun.log").open("wb") as output:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "harness.ranks.leash"),
                    *options,
                    *logs,
                    *("-m", "harness.ranks.worker"),
                ],
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    ADDRESS: self._address,
                    CONTROLLER: str(os.getpid()),
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
                how = ending(self.process.wait())
                found.append(Event(None, broken=f"torchrun ended, {how}"))
            elif key.data.heard:
                ended = key.fileobj == key.data.process
                found += self._last_words(key.data) if ended else self._receive(key.data)
        return found

    def _receive(self, link: Link) -> list[Event]:
        try:
            data = link.socket.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            return [Event(link, broken="died", died=True)] if link.rank is not None else []
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

    def _last_words(self, link: Link) -> list[Event]:
        """What a process that has ended sent before."""
        link.socket.setblocking(False)
        found = []
        while link.heard:
            found += self._receive(link)
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
        # It may have ended already; then its socket will say so.
        with contextlib.suppress(ProcessLookupError):
            link.process = os.pidfd_open(link.pid)
            self._selector.register(link.process, selectors.EVENT_READ, link)

    def _drop(self, link: Link) -> None:
        """Hear no more of this rank. It must not notice: it would go, and its traces with it."""
        link.heard = False
        self._selector.unregister(link.socket)
        if link.process is not None:
            self._selector.unregister(link.process)
        if link.rank is None:
            # It never said who it was, so nobody will look for it again.
            link.close()

    def send(self, rank: int, frame: bytes) -> bool:
        """Whether the rank's socket took it."""
        if not self.links[rank].heard:
            return False
        try:
            self.links[rank].socket.sendall(frame)
        except OSError:
            return False
        return True

    def progress(self, rank: int) -> str:
        """The last key a rank reached, also of a rank that is gone."""
        return self.read(f"progress.{rank}").rstrip(" \0")

    def read(self, name: str) -> str:
        """What a rank left in a file in our folder."""
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""

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

    def logs(self) -> dict[int, str]:
        """The end of every rank's output."""
        return {rank: self.log(rank) for rank in range(self.size)}

    def stop(self) -> None:
        """Let healthy ranks leave by themselves, then make sure."""
        for rank in self.links:
            self.send(rank, _STOP)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(3.0)
        self.kill()

    def kill_ranks(self) -> None:
        """End the ranks and what they started, but not torchrun, which tells how they ended."""
        for link in self.links.values():
            # torchrun gives each rank a session of its own; the rank's children are in it.
            _kill_group(link.pid)

    def kill(self) -> None:
        """End every process of this launch and remove its folder."""
        self._listener.close()
        if self.process.returncode is None:
            _kill_group(self.process.pid)
        self.kill_ranks()
        # Those that never connected, or left their session.
        sweep(self._address)
        strangers = [key.data for key in self._selector.get_map().values() if key.data]
        for link in [*strangers, *self.links.values()]:
            link.close()
        self.process.wait()
        self._selector.close()
        os.close(self._launcher)
        shutil.rmtree(self.folder, ignore_errors=True)


def ending(code: int) -> str:
    """An exit status in words."""
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names.get(-code, -code)}" if code < 0 else f"exit status {code}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
