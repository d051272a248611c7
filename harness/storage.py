"""Write a file or a folder whole or not at all, even if the writer is killed meanwhile.

1. A writer writes a draft beside the target, under a random name, and then renames it. So a
   reader sees the old content or the new one, and several writers do not disturb each other.
2. A folder replaces a folder by an exchange of the two names in one system call, since a rename
   does not replace a folder that holds files.
3. A killed writer leaves its draft; a later writer to the same parent folder deletes old drafts.
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
# Younger drafts are kept: their writers may still be at work.
LEFTOVER_SECONDS = 3600.0
# An attempt fails only if another writer has put its own folder into the place meanwhile.
ATTEMPTS = 100

# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def write_file(place: Path, content: bytes) -> None:
    """Create a file, or replace the one that is there."""
    draft = _new_draft(place.parent)
    try:
        draft.write_bytes(content)
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


def write_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """Create a folder with these files, by their relative names, or replace the one there."""
    draft = _new_draft(place.parent)
    try:
        draft.mkdir()
        for name, content in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(content)
        _move(draft, place)
    finally:
        # After an exchange the draft is the old folder; after an error, the unfinished new one.
        shutil.rmtree(draft, ignore_errors=True)


def require_writable(folder: Path) -> None:
    """Create the folder if needed, and a file in it; raise `OSError` if that fails."""
    draft = _new_draft(folder)
    draft.touch()
    draft.unlink()


def _new_draft(folder: Path) -> Path:
    """Create the folder, delete old drafts in it, and return an unused name for a draft."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{DRAFT}*"):
        with contextlib.suppress(OSError):
            if leftover.lstat().st_mtime < time.time() - LEFTOVER_SECONDS:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
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
        # This file system cannot exchange two names: for a moment the place is empty.
        old = _new_draft(place.parent)
        with contextlib.suppress(FileNotFoundError):
            place.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    raise FileExistsError(errno.EEXIST, "others keep writing it", str(place))


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one system call; return whether the system could."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    failed: int = swap(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return not failed
