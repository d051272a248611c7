"""What is written is there whole or not at all, whoever is killed while writing it.

It is written as a draft beside its place, under a name that nobody else uses, and then renamed.
"""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

DRAFT = ".draft-"
# What a killed writer leaves is removed by a later one, but not while it may still be at work.
LEFTOVER_SECONDS = 3600.0
# Each one lost means that another writer has put its own folder into the place.
ATTEMPTS = 100

_HERE, _EXCHANGE = -100, 2


def write_file(place: Path, content: bytes) -> None:
    """Make a file, in the place of the one that was there."""
    draft = _new_draft(place.parent)
    try:
        draft.write_bytes(content)
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


def write_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder of these files, by their names in it, in the place of what was there."""
    draft = _new_draft(place.parent)
    try:
        draft.mkdir()
        for name, content in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(content)
        _move(draft, place)
    finally:
        # Now it is what was there before, or what could not be finished.
        shutil.rmtree(draft, ignore_errors=True)


def require_writable(folder: Path) -> None:
    """Raise `OSError` unless a folder is there, or can be made, in which a file can be made."""
    draft = _new_draft(folder)
    draft.touch()
    draft.unlink()


def _new_draft(folder: Path) -> Path:
    """Name a draft in a folder; make the folder, and sweep away what was left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{DRAFT}*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_mtime < time.time() - LEFTOVER_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return folder / f"{DRAFT}{secrets.token_hex(8)}"


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
        old = _new_draft(place.parent)
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
