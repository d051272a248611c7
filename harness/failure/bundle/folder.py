"""Where bundles lie."""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

DEFAULT_FOLDER = Path(".harness/failures")


def elsewhere() -> Path:
    """Where to write when that is not allowed here."""
    return Path(tempfile.gettempdir()) / f"harness-failures-{os.getuid()}"


def private(folder: Path) -> Path:
    """Make it, for nobody else; what others may have laid there is refused."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise PermissionError(
            errno.EPERM, "can be written by others, or is a link; remove it", str(folder)
        )
    return folder


def is_private(folder: Path) -> bool:
    """Whether only this user can have put anything there."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return mine and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def listed(folders: Iterable[Path]) -> dict[str, Path]:
    """What was put into any of these; the first of two with one name."""
    places: dict[str, Path] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for place in sorted(folder.iterdir()):
                if not place.name.startswith("."):
                    places.setdefault(place.name, place)
    return places
