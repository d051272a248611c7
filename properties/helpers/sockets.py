"""The addresses on which processes listen."""

import socket
import struct
from contextlib import suppress
from pathlib import Path

FAMILIES = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6}
LISTENS = "0A"


def listening(*pids: int) -> set[str]:
    """Return the addresses on which these processes listen, all in one network namespace."""
    held = {_target(file) for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table, family in FAMILIES.items():
        for line in Path(f"/proc/{pids[0]}/net", table).read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in held:
                found.add(_address(family, address.partition(":")[0]))
    return found


def _target(file: Path) -> str:
    with suppress(FileNotFoundError):
        return str(file.readlink())
    return ""


def _address(family: socket.AddressFamily, text: str) -> str:
    """Read an address as the kernel writes it: numbers of four bytes, in hexadecimal."""
    words = (int(text[start : start + 8], 16) for start in range(0, len(text), 8))
    return socket.inet_ntop(family, b"".join(struct.pack("=I", word) for word in words))
