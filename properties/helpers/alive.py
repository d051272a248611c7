"""Find what a launch left behind on this machine, by what the kernel shows in `/proc`."""

import os
from pathlib import Path

from harness.supervision import supervisor_process
from harness.supervision.supervisor import OUTPUT
from properties.helpers.wait import eventually

VARIABLE = b"HARNESS_SOCKET="
# The processes of a launch must end within so many seconds.
SECONDS = 5.0


def address_of(pid: int) -> str:
    """Return the address on which the launch of a process listens; no two launches share it."""
    process = Path(f"/proc/{pid}")
    # During exec the environment of a process cannot be read.
    assert eventually(lambda: bool(_addresses(process)))
    return _addresses(process)[0]


def left_behind(address: str) -> list[str]:
    """List the processes and files of a launch that still exist after the allowed time."""
    eventually(lambda: not _members(address), SECONDS)
    return _members(address)


def _members(address: str) -> list[str]:
    processes = {
        entry: _read(entry / "cmdline").replace(bytes(1), b" ").decode()
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    found = {
        entry: command
        for entry, command in processes.items()
        # Planted processes without an environment have the address in their command.
        if address in command or address in _addresses(entry)
    }
    folder = Path(address).parent
    idle = [entry for entry, command in found.items() if _is_idle_supervisor(entry, command)]
    for entry in idle:
        del found[entry]
    kept = {str(folder), str(folder / OUTPUT)} if idle else set()
    files = [file for file in _files_in(folder) if file not in kept]
    return files + [f"{entry.name}: {command}" for entry, command in found.items()]


def _is_idle_supervisor(process: Path, command: str) -> bool:
    """Whether it is a supervisor that waits for the next launch of its living controller."""
    parents = _read(process / "stat").rpartition(b")")[2].split()[1:2]
    controllers = _variables(process, f"{supervisor_process.CONTROLLER}=".encode())
    return supervisor_process.__name__ in command and parents == [
        pid.encode() for pid in controllers
    ]


def _files_in(folder: Path) -> list[str]:
    # Folders may vanish while they are listed, if a launch is ending. os.walk skips those;
    # Path.rglob raises.
    found = [
        str(Path(place, name))
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]
    return [str(folder), *found] if folder.exists() else []


def _addresses(process: Path) -> list[str]:
    return _variables(process, VARIABLE)


def _variables(process: Path, name: bytes) -> list[str]:
    variables = _read(process / "environ").split(b"\0")
    return [v.removeprefix(name).decode() for v in variables if v.startswith(name)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
