"""What is alive on this machine, asked of the kernel and of nobody else."""

import os
from pathlib import Path

from harness.ranks import supervisor_process
from harness.ranks.supervisor import OUTPUT
from properties.helpers.wait import eventually

VARIABLE = b"HARNESS_SOCKET="
# Seconds that ranks have to be gone.
ALLOWED = 5.0


def address_of(pid: int) -> str:
    """Where the launch listens that a process belongs to; unique to it."""
    process = Path(f"/proc/{pid}")
    # While a process changes its program it has no environment to be read.
    assert eventually(lambda: bool(_addresses(process)))
    return _addresses(process)[0]


def left_behind(address: str) -> list[str]:
    """Processes and files of a launch that are still there after the time that is allowed."""
    eventually(lambda: not _members(address), ALLOWED)
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
        # Planted ones without an environment say in their command whose they are.
        if address in command or address in _addresses(entry)
    }
    folder = Path(address).parent
    waits = [entry for entry, command in found.items() if _waits(entry, command)]
    for entry in waits:
        del found[entry]
    known = {str(folder), str(folder / OUTPUT)} if waits else set()
    files = [file for file in _files_in(folder) if file not in known]
    return files + [f"{entry.name}: {command}" for entry, command in found.items()]


def _waits(process: Path, command: str) -> bool:
    """Whether it is a supervisor whose controller lives, and may give it its next launch."""
    parent = _read(process / "stat").rpartition(b")")[2].split()[1:2]
    controller = _variables(process, f"{supervisor_process.CONTROLLER}=".encode())
    return supervisor_process.__name__ in command and parent == [
        each.encode() for each in controller
    ]


def _files_in(folder: Path) -> list[str]:
    # While a launch is being ended its folders vanish under the one who lists them; os.walk
    # passes over those, Path.rglob does not.
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
