"""What is alive on this machine, asked of the kernel and of nobody else."""

import os
import time
from pathlib import Path

VARIABLE = b"HARNESS_SOCKET="
PATIENCE = 5.0


def address_of(pid: int) -> str:
    """Where the launch listens that a process belongs to; unique to it."""
    # While a process changes its program it has no environment to be read.
    until = time.monotonic() + PATIENCE
    while not (found := _addresses(Path(f"/proc/{pid}"))) and time.monotonic() < until:
        time.sleep(0.01)
    return found[0]


def left_behind(address: str) -> list[str]:
    """Processes and files of a launch that are still there after the time that is allowed."""
    until = time.monotonic() + PATIENCE
    while (found := _members(address)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _members(address: str) -> list[str]:
    processes = {
        entry: _read(entry / "cmdline").replace(bytes(1), b" ").decode()
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    return _files_in(Path(address).parent) + [
        f"{entry.name}: {command}"
        for entry, command in processes.items()
        # Planted ones without an environment say in their command whose they are.
        if address in command or address in _addresses(entry)
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
    variables = _read(process / "environ").split(b"\0")
    return [v.removeprefix(VARIABLE).decode() for v in variables if v.startswith(VARIABLE)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
