"""Folders that are there whole or not at all."""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

DEFAULT_FOLDER = Path(".harness/failures")
# What a killed writer leaves is removed by a later one, but not while it may still be at work.
LEFTOVER_SECONDS = 3600.0
# Each one lost means that another writer has put its own into the place.
ATTEMPTS = 100

_HERE, _EXCHANGE = -100, 2
_DRAFT = ".draft-"


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


def put(files: Mapping[str, bytes], name: str, folder: Path) -> Path:
    """Make `folder/name` of these files, in the place of what was there."""
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    draft = _draft_in(folder)
    try:
        draft.mkdir()
        for file, content in files.items():
            (draft / file).write_bytes(content)
        _move(draft, folder / name)
    finally:
        # Now it is what was there before, or what could not be finished.
        shutil.rmtree(draft, ignore_errors=True)
    return folder / name


def listed(folders: Iterable[Path]) -> dict[str, Path]:
    """What was put into any of these; the first of two with one name."""
    places: dict[str, Path] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for place in sorted(folder.iterdir()):
                if not place.name.startswith("."):
                    places.setdefault(place.name, place)
    return places


def _draft_in(folder: Path) -> Path:
    return folder / f"{_DRAFT}{secrets.token_hex(8)}"


def _move(draft: Path, place: Path) -> None:
    for _ in range(ATTEMPTS):
        try:
            draft.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if _exchange(draft, place):
            return
        # A file system that cannot: then there is a moment with nothing in the place.
        old = _draft_in(place.parent)
        with contextlib.suppress(FileNotFoundError):
            place.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    raise FileExistsError(errno.EEXIST, "others keep writing it", str(place))


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; whether that was possible."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    swapped: int = swap(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    return swapped == 0


def _sweep(folder: Path) -> None:
    for place in folder.glob(f"{_DRAFT}*"):
        with contextlib.suppress(OSError):
            if place.stat().st_mtime < time.time() - LEFTOVER_SECONDS:
                shutil.rmtree(place, ignore_errors=True)
