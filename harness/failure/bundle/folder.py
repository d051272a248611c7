"""The folders in which bundles are written and found."""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

DEFAULT_FOLDER = Path(".harness/failures")


def fallback_folder() -> Path:
    """Return the folder to write into where `DEFAULT_FOLDER` cannot be written."""
    return Path(tempfile.gettempdir()) / f"harness-failures-{os.getuid()}"


def make_private(folder: Path) -> Path:
    """Make a folder of this user alone; raise `PermissionError` if others can write to it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise PermissionError(
            errno.EPERM, "can be written by others, or is a link; remove it", str(folder)
        )
    return folder


def is_private(folder: Path) -> bool:
    """Return whether it is a folder of this user, and no other user can write to it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own_folder and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def list_bundles(folders: Iterable[Path]) -> dict[str, Path]:
    """Return what these folders hold, by name; of two with one name, the first."""
    places: dict[str, Path] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for place in sorted(folder.iterdir()):
                if not place.name.startswith("."):
                    places.setdefault(place.name, place)
    return places
