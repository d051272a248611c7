"""The folder of a launch: private, with a short path, and gone with its last process."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from harness.untrusted import BadInput

# Bytes. The path of a socket may have 107, and the names inside the folder need the rest.
LONGEST_PLACE = 70
PREFIX = "harness-ranks-"
# Seconds after which a process that made a folder holds it.
SOON = 60.0


class NoRoom(BadInput):
    """No folder for ranks can be made."""


def make() -> Path:
    """Make a folder that only this user can reach, and remove those that no process holds."""
    where = tempfile.gettempdir()
    if len(os.fsencode(where)) > LONGEST_PLACE:
        where = "/tmp"  # noqa: S108 - what is made there is private
    sweep(Path(where))
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    except OSError as error:
        raise NoRoom(
            f"TMPDIR={where}: no folder for ranks can be made there: {error.strerror}; make room, "
            "or name another"
        ) from None


def hold(folder: Path) -> int:
    """Keep a folder from being swept until this process and its forks have ended."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def sweep(where: Path) -> None:
    """Remove the folders of launches whose controller and supervisor were both killed."""
    for folder in where.glob(f"{PREFIX}*"):
        # Folders of other users cannot be removed, and other processes may sweep meanwhile.
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < SOON:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
