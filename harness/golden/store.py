"""The folder: read as a whole under a lock, and written so that it is the old one or the new one.

A writer prepares all files in a hidden folder, and then renames it: from that moment they count.
Readers look there first. Moving them to their places can be interrupted at any time, and the next
writer goes on with it.
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
# Beside the goldens, and read by people only.
README = "README.md"
PATIENCE = 30.0
# No golden is a hundredth of that; a file that is should not be read to find out.
LARGEST = 64 << 20

Files = Mapping[str, bytes]


class Store:
    """Goldens in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> dict[str, bytes]:
        """All files by their relative names, as they were at one moment."""
        with self._locked(fcntl.LOCK_SH):
            return self._files()

    def write(self, files: Files) -> None:
        """Add these, or put them in the place of others: all of them, or none."""
        self.change(lambda _: files)

    def change(self, changed: Callable[[dict[str, bytes]], Files]) -> None:
        """Write what is made of what is there at that moment: no other writer comes between."""
        with self._told():
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked(fcntl.LOCK_EX):
            self._settle()
            files = changed(self._files())
            with self._told():
                # All or none; of none nothing is left behind.
                write_folder(self.folder / COMMITTED, files)
            self._settle()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A full disk is no fault of the harness."""
        try:
            yield
        except OSError as error:
            why = f"cannot be written: {error.strerror}; nothing in it was changed"
            raise BadGolden(f"store={self.folder}: {why}") from None

    def _files(self) -> dict[str, bytes]:
        return {**_read(self.folder), **_read(self.folder / COMMITTED)}

    def _settle(self) -> None:
        """Finish what a writer that was killed had begun."""
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
    def _locked(self, how: int) -> Iterator[None]:
        # The kernel lets go of it when its holder dies.
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise BadGolden(f"store={self.folder}: {error.strerror}") from None
        try:
            _wait_for(folder, how, self.folder)
            yield
        finally:
            os.close(folder)


def _wait_for(folder: int, how: int, name: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(folder, how | fcntl.LOCK_NB)
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
    """What lies there, but for what a writer is at; a link is named, and nobody follows it."""
    names = []
    for path, folders, files in os.walk(folder):
        here = Path(path)
        links = [each for each in folders if (here / each).is_symlink()]
        names += [str((here / each).relative_to(folder)) for each in sorted([*files, *links])]
        if here == folder:
            folders[:] = [each for each in folders if not _is_of_a_writer(each)]
        folders.sort()
    return [name for name in names if name != README]


def _is_of_a_writer(name: str) -> bool:
    return name == COMMITTED or name.startswith(DRAFT)
