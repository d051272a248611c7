"""The folder of a launch: private, short enough for a socket, and gone with its last process."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from harness.untrusted import BadInput

# In bytes; a socket's path has 107, and what lies in the folder needs the rest.
LONGEST_PLACE = 70
PREFIX = "harness-ranks-"
# A process that makes a folder holds it by then.
SOON = 60.0


class NoRoom(BadInput):
    """Ranks have no place for their files."""


def make() -> Path:
    """A new one, that only this user can reach; and none that nobody holds any more is left."""
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
    """Keep it from being swept, until this process and all that it forks are gone."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


def sweep(where: Path) -> None:
    """Remove what was left by launches whose both ends were killed."""
    for folder in where.glob(f"{PREFIX}*"):
        # Folders of other users are not ours, and other processes may sweep at the same time.
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < SOON:
                continue
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
