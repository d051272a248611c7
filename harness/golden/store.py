"""The folder of a store: read as it is at one moment, and written whole or not at all.

1. A reader and a writer lock the folder. The kernel releases the lock of a process that dies.
2. A writer puts all files into a hidden folder and renames it to `.committed`. From that moment
   they count: readers prefer what is there.
3. The writer then moves the files to their places. If it is killed meanwhile, the next writer
   finishes that.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.golden.damage import BadGolden
from harness.storage import DRAFT, write_folder
from harness.untrusted import NotReadable, read_file

COMMITTED = ".committed"
# It lies beside the goldens and is no part of the store.
README = "README.md"
# Seconds to wait for the lock.
PATIENCE = 30.0
# No golden has a hundredth of these bytes, and a larger file is not read.
LARGEST = 64 << 20

Files = Mapping[str, bytes]


class Store:
    """Goldens in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> dict[str, bytes]:
        """Return the content of all files by their relative names, as they are at one moment."""
        with self._locked(fcntl.LOCK_SH):
            return self._files()

    def write(self, files: Files) -> None:
        """Add or replace these files: all of them, or none."""
        self.change(lambda _: files)

    def change(self, make_files: Callable[[dict[str, bytes]], Files]) -> None:
        """Write the files that are made from the present ones; no other writer comes between."""
        with self._refusing_bad_disk():
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked(fcntl.LOCK_EX):
            self._finish_commit()
            files = make_files(self._files())
            with self._refusing_bad_disk():
                write_folder(self.folder / COMMITTED, files)
            self._finish_commit()

    @contextmanager
    def _refusing_bad_disk(self) -> Iterator[None]:
        """Turn an `OSError`, such as a full disk, into `BadGolden`."""
        try:
            yield
        except OSError as error:
            why = f"cannot be written: {error.strerror}; nothing in it was changed"
            raise BadGolden(f"store={self.folder}: {why}") from None

    def _files(self) -> dict[str, bytes]:
        return {**_read(self.folder), **_read(self.folder / COMMITTED)}

    def _finish_commit(self) -> None:
        """Move committed files to their places, and remove the drafts of writers that died."""
        for draft in self.folder.glob(f"{DRAFT}*"):
            shutil.rmtree(draft)
        committed = self.folder / COMMITTED
        if not committed.exists():
            return
        for name in _names(committed):
            place = self.folder / name
            place.parent.mkdir(exist_ok=True)
            (committed / name).replace(place)
        shutil.rmtree(committed)

    @contextmanager
    def _locked(self, mode: int) -> Iterator[None]:
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise BadGolden(f"store={self.folder}: {error.strerror}") from None
        try:
            _wait_for_lock(folder, mode, self.folder)
            yield
        finally:
            os.close(folder)


def _wait_for_lock(folder: int, mode: int, name: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(folder, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise BadGolden(
                    f"store={name}: another process has held it for {PATIENCE:g} s"
                ) from None
            time.sleep(0.02)
        except OSError as error:
            raise BadGolden(f"store={name}: cannot be locked: {error.strerror}") from None
        else:
            return


def _read(folder: Path) -> dict[str, bytes]:
    files = {}
    for name in _names(folder):
        path = folder / name
        try:
            files[name] = read_file(path, LARGEST)
        except OSError as error:
            raise BadGolden(f"{name}: cannot be read: {error.strerror}") from None
        except NotReadable as error:
            raise BadGolden(f"{name}: {error}") from None
    return files


def _names(folder: Path) -> list[str]:
    """Return the relative names of all files in a folder, without those of an unfinished write.

    A link to a folder is listed like a file, and not followed.
    """
    names = []
    for path, folders, files in os.walk(folder):
        parent = Path(path)
        links = [name for name in folders if (parent / name).is_symlink()]
        names += [str((parent / name).relative_to(folder)) for name in sorted([*files, *links])]
        if parent == folder:
            folders[:] = [name for name in folders if not _is_unfinished(name)]
        folders.sort()
    return [name for name in names if name != README]


def _is_unfinished(name: str) -> bool:
    return name == COMMITTED or name.startswith(DRAFT)
